// Lets this library use the base's own variables, which the base hides, in the
// place of its own: their addresses go into the places where the dynamic linker
// has put those that it found. The source that includes this lists them, by
// name.
#include "loaded.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

struct Variable {
  const char* name;
  const char* library;
  unsigned long offset; // from its begin
};
extern const Variable fork_variables[];
extern const size_t fork_variable_count;

// The linker defines it for each library.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[];

namespace {

// An address of the dynamic section, which most loaders have made one of the
// process.
template <typename T>
T* at(ElfW(Sxword) tag) {
  const auto own = reinterpret_cast<uintptr_t>(__ehdr_start);
  for (const ElfW(Dyn)* one = _DYNAMIC; one->d_tag != DT_NULL; ++one) {
    if (one->d_tag == tag) {
      const uintptr_t value = one->d_un.d_ptr;
      return reinterpret_cast<T*>(value < own ? own + value : value);
    }
  }
  return nullptr;
}

size_t size(ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* one = _DYNAMIC; one->d_tag != DT_NULL; ++one) {
    if (one->d_tag == tag) {
      return one->d_un.d_val;
    }
  }
  return 0;
}

// What the loader has made read-only behind its own writing.
bool is_fixed(uintptr_t place) {
  const auto own = reinterpret_cast<uintptr_t>(__ehdr_start);
  const auto& head = *reinterpret_cast<const ElfW(Ehdr)*>(__ehdr_start);
  const auto* parts = reinterpret_cast<const ElfW(Phdr)*>(own + head.e_phoff);
  return std::any_of(parts, parts + head.e_phnum, [&](const auto& part) {
    const uintptr_t begin = own + part.p_vaddr;
    return part.p_type == PT_GNU_RELRO && begin <= place &&
        place < begin + part.p_memsz;
  });
}

void put(uintptr_t place, const char* value) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  void* begin = reinterpret_cast<void*>(place / page * page);
  const bool fixed = is_fixed(place);
  if (fixed && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) {
    std::fprintf(
        stderr, "this system does not let the fork change its own tables\n");
    std::_Exit(1);
  }
  std::memcpy(reinterpret_cast<void*>(place), &value, sizeof(value));
  if (fixed) {
    mprotect(begin, page, PROT_READ);
  }
}

// Before any variable of this library is built.
__attribute__((constructor(101))) void lead() {
  const auto* table = at<const ElfW(Rela)>(DT_RELA);
  const auto* symbols = at<const ElfW(Sym)>(DT_SYMTAB);
  const auto* strings = at<const char>(DT_STRTAB);
  const auto own = reinterpret_cast<uintptr_t>(__ehdr_start);
  const Variable* end = fork_variables + fork_variable_count;
  for (size_t n = 0; n < size(DT_RELASZ) / sizeof(*table); ++n) {
    const auto kind = ELF64_R_TYPE(table[n].r_info);
    const auto symbol = ELF64_R_SYM(table[n].r_info);
    if (symbol == 0 || (kind != R_X86_64_GLOB_DAT && kind != R_X86_64_64)) {
      continue;
    }
    const char* name = strings + symbols[symbol].st_name;
    const Variable* one = std::lower_bound(
        fork_variables, end, name, [](const Variable& one, const char* name) {
          return std::strcmp(one.name, name) < 0;
        });
    if (one != end && std::strcmp(one->name, name) == 0) {
      char* place = address(one->library, one->offset) + table[n].r_addend;
      put(own + table[n].r_offset, place);
    }
  }
}

} // namespace
