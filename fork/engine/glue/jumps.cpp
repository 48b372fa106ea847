// Makes copies of functions in the base's libraries jump to the fork's, before
// anything else of the fork runs. The source that includes this lists them,
// those of one library in a row.
#include "loaded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <initializer_list>

struct Copy {
  const char* library;
  unsigned long offset; // from its begin
  void (*now)(); // the fork's
};
extern const Copy fork_copies[];
extern const size_t fork_copy_count;

namespace {

constexpr int kFar = 14; // bytes of a jump to any address
constexpr int64_t kReach = (int64_t{1} << 31) - (1 << 16);

[[noreturn]] void stop(const char* library, const char* what) {
  std::fprintf(
      stderr,
      "the fork replaces functions of %s in memory, and %s: %s\n",
      library,
      what,
      std::strerror(errno));
  std::_Exit(1);
}

bool reaches(const char* from, const char* to) {
  const int64_t distance = to - from;
  return -kReach < distance && distance < kReach;
}

// Memory for a far jump of each copy, below or above the library.
char* stairs_of(const Loaded& library) {
  const size_t size = fork_copy_count * kFar;
  for (int64_t step = 1 << 20; step < kReach; step += 1 << 20) {
    for (char* hint : {library.begin - step, library.end + step}) {
      if (!reaches(hint, library.end) || !reaches(library.begin, hint)) {
        continue;
      }
      const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
      const int rights = PROT_READ | PROT_WRITE;
      void* made = mmap(hint, size, rights, flags, -1, 0);
      if (made == hint) {
        return hint;
      }
      if (made != MAP_FAILED) {
        munmap(made, size);
      }
    }
  }
  errno = ENOMEM;
  stop(library.name, "no memory is free near it");
}

void jump(char* from, const char* to) {
  const auto distance = static_cast<int32_t>(to - (from + 5));
  *from = '\xe9';
  std::memcpy(from + 1, &distance, sizeof(distance));
}

void jump_far(char* from, const char* to) {
  std::memcpy(from, "\xff\x25\0\0\0\0", 6);
  std::memcpy(from + 6, &to, sizeof(to));
}

void protect(const Loaded& library, char* first, char* last, int rights) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(first) / page * page;
  const uintptr_t size = reinterpret_cast<uintptr_t>(last) - begin;
  if (mprotect(reinterpret_cast<void*>(begin), size, rights) != 0) {
    stop(library.name, "this system does not let a program change its code");
  }
}

__attribute__((constructor(101))) void write_jumps() {
  Loaded library = {};
  char* stairs = nullptr; // far jumps, where this library reaches them
  for (size_t n = 0; n < fork_copy_count; ++n) {
    const Copy& copy = fork_copies[n];
    if (!library.name || std::strcmp(library.name, copy.library) != 0) {
      library = find(copy.library);
      stairs = nullptr;
    }
    if (!library.begin) {
      continue; // a program without Python has not its library
    }
    char* from = library.begin + copy.offset;
    const char* to = reinterpret_cast<const char*>(copy.now);
    if (!reaches(from, to)) {
      if (!stairs) {
        stairs = stairs_of(library);
      }
      char* step = stairs + kFar * n;
      protect(library, step, step + kFar, PROT_READ | PROT_WRITE);
      jump_far(step, to);
      protect(library, step, step + kFar, PROT_READ | PROT_EXEC);
      to = step;
    }
    protect(library, from, from + 5, PROT_READ | PROT_WRITE);
    jump(from, to);
    protect(library, from, from + 5, PROT_READ | PROT_EXEC);
  }
}

} // namespace
