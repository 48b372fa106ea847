// cpublas::gemm for kernels: libtorch_cpu hides the wrapper and exports the
// BLAS that it calls.
#include <ATen/native/CPUBlas.h>

namespace at::native::cpublas {

namespace {

const char* letter(TransposeType trans) {
  return trans == TransposeType::NoTranspose ? "n"
      : trans == TransposeType::Transpose    ? "t"
                                             : "c";
}

// BLAS takes 32-bit sizes, and no leading dimension of 0.
int size(int64_t n) {
  return c10::checked_convert<int>(n, "int");
}

int leading(int64_t n) {
  return size(std::max<int64_t>(n, 1));
}

} // namespace

// By the Fortran interface of BLAS.
#define DEFINE_GEMM(name, scalar)                                            \
  extern "C" void name(                                                      \
      const char* transa,                                                    \
      const char* transb,                                                    \
      const int* m,                                                          \
      const int* n,                                                          \
      const int* k,                                                          \
      const scalar* alpha,                                                   \
      const scalar* a,                                                       \
      const int* lda,                                                        \
      const scalar* b,                                                       \
      const int* ldb,                                                        \
      const scalar* beta,                                                    \
      scalar* c,                                                             \
      const int* ldc);                                                       \
                                                                             \
  void gemm(                                                                 \
      TransposeType transa,                                                  \
      TransposeType transb,                                                  \
      int64_t m,                                                             \
      int64_t n,                                                             \
      int64_t k,                                                             \
      scalar alpha,                                                          \
      const scalar* a,                                                       \
      int64_t lda,                                                           \
      const scalar* b,                                                       \
      int64_t ldb,                                                           \
      scalar beta,                                                           \
      scalar* c,                                                             \
      int64_t ldc) {                                                         \
    const int m_ = size(m), n_ = size(n), k_ = size(k);                      \
    const int lda_ = leading(lda), ldb_ = leading(ldb), ldc_ = leading(ldc); \
    name(                                                                    \
        letter(transa),                                                      \
        letter(transb),                                                      \
        &m_,                                                                 \
        &n_,                                                                 \
        &k_,                                                                 \
        &alpha,                                                              \
        a,                                                                   \
        &lda_,                                                               \
        b,                                                                   \
        &ldb_,                                                               \
        &beta,                                                               \
        c,                                                                   \
        &ldc_);                                                              \
  }

DEFINE_GEMM(sgemm_, float)
DEFINE_GEMM(dgemm_, double)
DEFINE_GEMM(cgemm_, c10::complex<float>)
DEFINE_GEMM(zgemm_, c10::complex<double>)

} // namespace at::native::cpublas
