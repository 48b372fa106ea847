// Where a library lies that the process has loaded, by the name of its file.
#pragma once
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

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

inline Loaded find(const char* name) {
  Loaded library = {name, nullptr, nullptr};
  dl_iterate_phdr(is_it, &library);
  return library;
}

// Of what a library hides, by its distance from the library's begin.
inline char* address(const char* name, unsigned long offset) {
  const Loaded library = find(name);
  if (!library.begin) {
    std::fprintf(
        stderr, "the fork uses what %s hides, which is not loaded\n", name);
    std::_Exit(1);
  }
  return library.begin + offset;
}

} // namespace
