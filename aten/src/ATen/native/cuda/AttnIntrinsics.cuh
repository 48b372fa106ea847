// The GPU instructions that attn's fused kernels use, one function each.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

// Everything else in the kernels is plain C++.
namespace at::native::attn_fused {

#define ATTN_DEVICE __device__ __forceinline__

ATTN_DEVICE char* shared_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}

using SharedAddress = unsigned;

ATTN_DEVICE SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}

// Starts to copy 16 bytes from global to shared memory. If `valid` is false it
// writes zeros and reads nothing.
ATTN_DEVICE void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                   shared_address(to)),
               "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// Makes one group of the copies that this thread has started since the last.
ATTN_DEVICE void copy_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
ATTN_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

ATTN_DEVICE void block_barrier() {
  __syncthreads();
}

// The value of lane `source` in this lane's group of four.
ATTN_DEVICE float quad_broadcast(float value, int source) {
  return __shfl_sync(0xffffffffu, value, source, 4);
}

ATTN_DEVICE void load_shared(float& x, SharedAddress from) {
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(from) : "memory");
}

ATTN_DEVICE void load_shared(double& x, SharedAddress from) {
  asm volatile("ld.shared.f64 %0, [%1];\n" : "=d"(x) : "r"(from) : "memory");
}

// Four neighbouring floats.
ATTN_DEVICE void load_shared(float (&x)[4], SharedAddress from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(from)
               : "memory");
}

// Loads four matrices of 8 rows of 16 bytes. Lane l gives the address of row
// l % 8 of matrix l / 8, and receives word l % 4 of row l / 4 of each matrix.
ATTN_DEVICE void load_matrices(uint32_t (&words)[4], SharedAddress row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(row)
      : "memory");
}

// Loads and transposes four 8 x 8 matrices of 2-byte elements. Lane l receives
// elements (2 * (l % 4), l / 4) and (2 * (l % 4) + 1, l / 4) of each.
ATTN_DEVICE void load_matrices_transposed(
    uint32_t (&words)[4],
    SharedAddress row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(row)
      : "memory");
}

// c (16 x 8) += a (16 x 16) @ b (16 x 8)
#define ATTN_MMA_16(type, name)                                              \
  ATTN_DEVICE void mma(                                                      \
      type, float(&c)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) { \
    asm volatile(                                                            \
        "mma.sync.aligned.m16n8k16.row.col.f32." name "." name               \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "                \
        "{%0, %1, %2, %3};\n"                                                \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));     \
  }
ATTN_MMA_16(c10::Half, "f16")
ATTN_MMA_16(c10::BFloat16, "bf16")
#undef ATTN_MMA_16

// c (16 x 8) += a (16 x 8) @ b (8 x 8), a and b rounded by to_tf32
ATTN_DEVICE void mma(
    float,
    float (&c)[4],
    const uint32_t (&a)[4],
    uint32_t b0,
    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c (16 x 8) += a (16 x 4) @ b (4 x 8)
ATTN_DEVICE void mma(double (&c)[4], double a0, double a1, double b) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a0), "d"(a1), "d"(b));
#else
  const double a[2] = {a0, a1};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 "
        "{%0, %1}, {%2}, {%3}, {%0, %1};\n"
        : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
        : "d"(a[half]), "d"(b));
  }
#endif
}

ATTN_DEVICE uint32_t float_bits(float x) {
  return __float_as_uint(x);
}

ATTN_DEVICE uint32_t to_tf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;\n"
      : "=r"(rounded)
      : "f"(__uint_as_float(bits)));
  return rounded;
}

ATTN_DEVICE uint32_t pack(c10::Half, float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

ATTN_DEVICE uint32_t pack(c10::BFloat16, float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// One instruction. Its relative error of 2^-11 is smaller than the rounding of
// bfloat16 and as large as that of float16.
ATTN_DEVICE float tanh_approximate(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Stores 16 bytes that this kernel does not read again.
template <typename T>
ATTN_DEVICE void store_streaming(void* to, const T& value) {
  static_assert(sizeof(T) == 16);
  uint4 words;
  memcpy(&words, &value, 16);
  __stcs(static_cast<uint4*>(to), words);
}

} // namespace at::native::attn_fused
