// Lets this library use the base's own variables, which the base hides, in the
// place of its own: their addresses go into the places where the dynamic linker
// has put those that it found. The source that includes this lists them, by
// name.
#include "loaded.h"

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

// A number of the dynamic section; 0 where it has none.
uintptr_t number(ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* one = _DYNAMIC; one->d_tag != DT_NULL; ++one) {
    if (one->d_tag == tag) {
      return one->d_un.d_val;
    }
  }
  return 0;
}

// An address of it, which most loaders have made one of the process.
template <typename T>
T* at(ElfW(Sxword) tag) {
  const auto own = reinterpret_cast<uintptr_t>(__ehdr_start);
  const uintptr_t value = number(tag);
  return reinterpret_cast<T*>(value < own ? own + value : value);
}

// Before any variable of this library is built. It was linked so that nothing
// of it is made read-only behind the loader's own writing (WRITABLE).
__attribute__((constructor(101))) void lead() {
  const auto* table = at<const ElfW(Rela)>(DT_RELA);
  const auto* symbols = at<const ElfW(Sym)>(DT_SYMTAB);
  const auto* strings = at<const char>(DT_STRTAB);
  const auto own = reinterpret_cast<uintptr_t>(__ehdr_start);
  const Variable* end = fork_variables + fork_variable_count;
  for (size_t n = 0; n < number(DT_RELASZ) / sizeof(*table); ++n) {
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
      char* value = address(one->library, one->offset) + table[n].r_addend;
      auto* place = reinterpret_cast<void*>(own + table[n].r_offset);
      std::memcpy(place, &value, sizeof(value));
    }
  }
}

} // namespace
