// An allocator to preload: every block that posix_memalign gives (which is how c10 allocates on Linux) ends at a page that
// cannot be touched, is filled with NaN, and cannot be touched after it is freed. It counts bytes and can fail on demand.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };
static const size_t ARENA = (size_t)1 << 40; // Addresses only: pages get memory when a block takes them

typedef struct {
  size_t pages, size;
} Block;

static char* arena;
static Block* blocks; // By the number of the block's first page
static size_t next_page;
static size_t live, peak, count, fail_in;
static uint64_t fill = ~(uint64_t)0;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void reserve(void) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  arena = mmap(NULL, ARENA, PROT_NONE, flags, -1, 0);
  blocks = mmap(NULL, ARENA / PAGE * sizeof(Block), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (arena == MAP_FAILED || blocks == MAP_FAILED) {
    abort();
  }
}

// c10 asks for it. Other libraries crash where their own allocations fail, whoever calls them.
static int is_tensor_memory(const void* caller) {
  Dl_info info;
  return dladdr(caller, &info) && strstr(info.dli_fname, "libc10.so");
}

int posix_memalign(void** to, size_t alignment, size_t size) {
  pthread_mutex_lock(&lock);
  if (!arena) {
    reserve();
  }
  if (fail_in && is_tensor_memory(__builtin_return_address(0)) && --fail_in == 0) {
    pthread_mutex_unlock(&lock);
    return ENOMEM;
  }
  // The block's end is aligned too, so up to alignment - 1 bytes lie between it and the page behind.
  const size_t room = (size + alignment - 1) / alignment * alignment;
  const size_t pages = (room + PAGE - 1) / PAGE + (room == 0);
  const size_t align_pages = alignment > PAGE ? alignment / PAGE : 1;
  const size_t first = (next_page + align_pages - 1) / align_pages * align_pages;
  char* const begin = arena + first * PAGE;
  if ((first + pages + 1) * PAGE > ARENA || mprotect(begin, pages * PAGE, PROT_READ | PROT_WRITE)) {
    pthread_mutex_unlock(&lock);
    return ENOMEM;
  }
  next_page = first + pages + 1;
  blocks[first] = (Block){pages, size};
  live += size;
  peak = live > peak ? live : peak;
  count++;
  pthread_mutex_unlock(&lock);
  for (uint64_t* word = (uint64_t*)begin; (char*)word < begin + pages * PAGE; word++) {
    *word = fill;
  }
  *to = alignment > PAGE ? begin : begin + pages * PAGE - room;
  return 0;
}

void free(void* block) {
  static void (*next)(void*);
  char* const at = block;
  if (arena && at >= arena && at < arena + ARENA) {
    pthread_mutex_lock(&lock);
    const size_t first = (size_t)(at - arena) / PAGE;
    const Block b = blocks[first];
    if (!b.pages) {
      abort(); // Freed twice
    }
    blocks[first] = (Block){0, 0};
    live -= b.size;
    pthread_mutex_unlock(&lock);
    madvise(arena + first * PAGE, b.pages * PAGE, MADV_DONTNEED);
    mprotect(arena + first * PAGE, b.pages * PAGE, PROT_NONE);
    return;
  }
  if (!next) {
    next = (void (*)(void*))dlsym(RTLD_NEXT, "free");
  }
  next(block);
}

// What new memory is filled with: eight bytes, again and again.
void guard_fill(uint64_t word) {
  fill = word;
}

// The n-th allocation from now fails; 0: none does.
void guard_fail(size_t n) {
  fail_in = n;
}

// Whether the allocation that was to fail is still to come.
size_t guard_pending(void) {
  return fail_in;
}

size_t guard_live(void) {
  return live;
}

size_t guard_count(void) {
  return count;
}

// The largest number of live bytes since the last call.
size_t guard_peak(void) {
  const size_t was = peak;
  peak = live;
  return was;
}
