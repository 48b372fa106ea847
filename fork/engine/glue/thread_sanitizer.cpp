// Tells ThreadSanitizer what a parallel region of OpenMP orders: all before it
// comes before every thread's part, and all parts come before what follows.
// libgomp itself is not instrumented. Two parts of one region are not ordered,
// so races between them are found. The linker sends every call of GOMP_parallel
// here (--wrap).
extern "C" {
void __tsan_acquire(void*);
void __tsan_release(void*);
void __real_GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
void __wrap_GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
}

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  char begin = 0, end = 0;
};

void run(void* data) {
  auto* region = static_cast<Region*>(data);
  __tsan_acquire(&region->begin);
  region->body(region->data);
  __tsan_release(&region->end);
}

} // namespace

void __wrap_GOMP_parallel(
    void (*body)(void*),
    void* data,
    unsigned threads,
    unsigned flags) {
  Region region{body, data};
  __tsan_release(&region.begin);
  __real_GOMP_parallel(run, &region, threads, flags);
  __tsan_acquire(&region.end);
}
