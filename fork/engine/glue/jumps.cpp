// Makes copies of functions in the base's libraries jump to the fork's, before
// anything else of the fork runs. The source that includes this lists them, by
// library and place.
#include "loaded.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <initializer_list>

struct Copy {
  const char* library;
  unsigned long offset; // from its begin
  const char* now; // the fork's
};
extern const Copy fork_copies[];
extern const size_t fork_copy_count;

namespace {

constexpr int kNear = 5; // bytes of a jump over a distance
constexpr int kFar = 14; // and of one to any address
constexpr uintptr_t kPage = 4096;
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

char* page_of(char* place) {
  return place - reinterpret_cast<uintptr_t>(place) % kPage;
}

bool reaches(const char* from, const char* to) {
  const int64_t distance = to - from;
  return -kReach < distance && distance < kReach;
}

// Memory below or above the library.
char* beside(const Loaded& library, size_t size) {
  for (int64_t step = 1 << 20; step < kReach; step += 1 << 20) {
    for (char* hint : {library.begin - step, page_of(library.end + step)}) {
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
  const auto distance = static_cast<int32_t>(to - (from + kNear));
  *from = '\xe9';
  std::memcpy(from + 1, &distance, sizeof(distance));
}

void jump_far(char* from, const char* to) {
  std::memcpy(from, "\xff\x25\0\0\0\0", 6);
  std::memcpy(from + 6, &to, sizeof(to));
}

void protect(const char* library, char* first, char* last, int rights) {
  if (mprotect(first, last - first, rights) != 0) {
    stop(library, "this system does not let a program change its code");
  }
}

// For each copy a jump to any address, where the library reaches it.
char* stairs(const Loaded& library, const Copy* first, const Copy* last) {
  const size_t size = (last - first) * kFar;
  char* begin = beside(library, size);
  for (const Copy* one = first; one != last; ++one) {
    jump_far(begin + kFar * (one - first), one->now);
  }
  protect(library.name, begin, begin + size, PROT_READ | PROT_EXEC);
  return begin;
}

// Those of a library. Pages that follow one another change their rights once.
void lead(const Loaded& library, const Copy* first, const Copy* last) {
  const auto of = [&](const Copy* one) { return library.begin + one->offset; };
  const bool all = std::all_of(
      first, last, [&](const Copy& one) { return reaches(of(&one), one.now); });
  const char* steps = all ? nullptr : stairs(library, first, last);
  for (const Copy *one = first, *next; one != last; one = next) {
    char* begin = page_of(of(one));
    char* end = begin;
    for (next = one; next != last && page_of(of(next)) <= end; ++next) {
      end = page_of(of(next) + kNear - 1) + kPage;
    }
    protect(library.name, begin, end, PROT_READ | PROT_WRITE);
    for (; one != next; ++one) {
      jump(of(one), steps ? steps + kFar * (one - first) : one->now);
    }
    protect(library.name, begin, end, PROT_READ | PROT_EXEC);
  }
}

__attribute__((constructor(101))) void write_jumps() {
  const Copy* last = fork_copies + fork_copy_count;
  for (const Copy *one = fork_copies, *next; one != last; one = next) {
    const Loaded library = find(one->library);
    next = std::find_if(one, last, [&](const Copy& other) {
      return std::strcmp(other.library, one->library) != 0;
    });
    if (library.begin) { // a program without Python has not its library
      lead(library, one, next);
    }
  }
}

} // namespace
