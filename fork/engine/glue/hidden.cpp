// Puts the places of the base's hidden functions into a table, over which what
// the compiled sources call jumps to them. The source that includes this lists
// the places, and has the table and the jumps.
#include "loaded.h"

struct Hidden {
  const char* library;
  unsigned long offset; // from its begin
};
extern const Hidden fork_hidden[];
extern const size_t fork_hidden_count;
extern "C" __attribute__((visibility("hidden"))) char* fork_hidden_places[];

namespace {

// Before all that a source does when the process starts.
__attribute__((constructor(101))) void fill() {
  for (size_t n = 0; n < fork_hidden_count; ++n) {
    const Hidden& one = fork_hidden[n];
    fork_hidden_places[n] = address(one.library, one.offset);
  }
}

} // namespace
