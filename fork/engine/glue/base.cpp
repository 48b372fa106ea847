// Leads a library of the fork to what the base's libraries hide of what it
// uses, and makes copies of functions in those jump to the fork's, before
// anything else of the fork runs. The source that includes this lists them, by
// library and place.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string_view>
#include <vector>

namespace {

struct Place {
  const char* library;
  unsigned long offset; // from its begin
  const char* own; // a variable's name, or the fork's code of a function
};

std::vector<Place> hidden(); // functions
std::vector<Place> variables();
std::vector<Place> copies();

} // namespace

extern "C" {
// Where these functions are, for LEAD.
__attribute__((visibility("hidden"))) extern char* fork_places[];
// The linker defines it for each library.
__attribute__((visibility("hidden"))) extern const char __ehdr_start[];
}

#ifdef __aarch64__
#define JUMP(to) "adrp x16, " to "\n ldr x16, [x16, #:lo12:" to "]\n br x16\n"
#define SLOT R_AARCH64_GLOB_DAT
#define ADDRESS R_AARCH64_ABS64
#else
#define JUMP(to) "jmp *" to "(%rip)\n"
#define SLOT R_X86_64_GLOB_DAT
#define ADDRESS R_X86_64_64
#endif
// Defines a function that jumps to the one of this number.
#define LEAD(name, number)                                       \
  asm(".text\n .globl " name "\n .hidden " name "\n .type " name \
      ", %function\n" name ":\n" JUMP("fork_places+8*" #number));

namespace {

constexpr int kNear = 5; // bytes of a jump over a distance
constexpr int kFar = 14; // and of one to any address
constexpr uintptr_t kPage = 4096;
constexpr int64_t kReach = (int64_t{1} << 31) - (1 << 16);

struct Loaded {
  const char* name;
  char* begin; // null where it is not loaded
  char* end;
};

int is_it(dl_phdr_info* about, size_t, void* wanted) {
  auto& library = *static_cast<Loaded*>(wanted);
  const char* slash = std::strrchr(about->dlpi_name, '/');
  if (std::strcmp(slash ? slash + 1 : about->dlpi_name, library.name) != 0) {
    return 0;
  }
  library.begin = reinterpret_cast<char*>(about->dlpi_addr);
  for (int n = 0; n < about->dlpi_phnum; ++n) {
    const auto& part = about->dlpi_phdr[n];
    if (part.p_type == PT_LOAD) {
      library.end = library.begin + part.p_vaddr + part.p_memsz;
    }
  }
  return 1;
}

Loaded find(const char* name) {
  Loaded library = {name, nullptr, nullptr};
  dl_iterate_phdr(is_it, &library);
  return library;
}

char* address(const Place& place) {
  const Loaded library = find(place.library);
  if (!library.begin) {
    std::fprintf(
        stderr,
        "the fork uses what %s hides, which is not loaded\n",
        place.library);
    std::_Exit(1);
  }
  return library.begin + place.offset;
}

// Of the dynamic section, where glibc's addresses are those of the process; 0
// where it has none.
uintptr_t dynamic(ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* one = _DYNAMIC; one->d_tag != DT_NULL; ++one) {
    if (one->d_tag == tag) {
      return one->d_un.d_val;
    }
  }
  return 0;
}

// Puts the addresses of the base's variables where the dynamic linker has put
// those that it found. This library was linked so that nothing of it is made
// read-only behind the loader's own writing (WRITABLE).
void use_variables() {
  std::map<std::string_view, Place> known;
  for (const Place& one : variables()) {
    known[one.own] = one;
  }
  const auto* table = reinterpret_cast<ElfW(Rela)*>(dynamic(DT_RELA));
  const auto* symbols = reinterpret_cast<ElfW(Sym)*>(dynamic(DT_SYMTAB));
  const auto* strings = reinterpret_cast<char*>(dynamic(DT_STRTAB));
  const auto own = reinterpret_cast<uintptr_t>(__ehdr_start);
  for (size_t n = 0; n < dynamic(DT_RELASZ) / sizeof(*table); ++n) {
    const auto kind = ELF64_R_TYPE(table[n].r_info);
    const auto symbol = ELF64_R_SYM(table[n].r_info);
    const auto one = known.find(strings + symbols[symbol].st_name);
    if ((kind == SLOT || kind == ADDRESS) && one != known.end()) {
      char* value = address(one->second) + table[n].r_addend;
      auto* place = reinterpret_cast<void*>(own + table[n].r_offset);
      std::memcpy(place, &value, sizeof(value));
    }
  }
}

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
char* stairs(const Loaded& library, const Place* first, const Place* last) {
  const size_t size = (last - first) * kFar;
  char* begin = beside(library, size);
  for (const Place* one = first; one != last; ++one) {
    jump_far(begin + kFar * (one - first), one->own);
  }
  protect(library.name, begin, begin + size, PROT_READ | PROT_EXEC);
  return begin;
}

// Those of a library.
void lead(const Loaded& library, const Place* first, const Place* last) {
  const auto of = [&](const Place* one) { return library.begin + one->offset; };
  const bool all = std::all_of(first, last, [&](const Place& one) {
    return reaches(of(&one), one.own);
  });
  const char* steps = all ? nullptr : stairs(library, first, last);
  for (const Place* one = first; one != last; ++one) {
    char* begin = page_of(of(one));
    char* end = page_of(of(one) + kNear - 1) + kPage;
    protect(library.name, begin, end, PROT_READ | PROT_WRITE);
    jump(of(one), steps ? steps + kFar * (one - first) : one->own);
    protect(library.name, begin, end, PROT_READ | PROT_EXEC);
  }
}

void write_jumps() {
  const std::vector<Place> all = copies();
  const Place* last = all.data() + all.size();
  for (const Place *one = all.data(), *next; one != last; one = next) {
    const Loaded library = find(one->library);
    next = std::find_if(one, last, [&](const Place& other) {
      return std::strcmp(other.library, one->library) != 0;
    });
    if (library.begin) { // a program without Python has not its library
      lead(library, one, next);
    }
  }
}

// Before any variable of this library is built.
__attribute__((constructor(101))) void begin() {
  size_t number = 0;
  for (const Place& one : hidden()) {
    fork_places[number++] = address(one);
  }
  use_variables();
  write_jumps();
}

} // namespace
