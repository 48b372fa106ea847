// The GPU instructions that attn's fused kernels use, one function each.
// Everything else in the kernels is plain C++.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

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

// Waits until all of this thread's groups are finished.
ATTN_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

// Load four 8 x 8 matrices of 2-byte elements. Lane l gives the address of row
// l % 8 of matrix l / 8. Of each matrix it receives elements (l / 4, 2 * (l %
// 4)) and (l / 4, 2 * (l % 4) + 1); transposed, those with row and column
// exchanged.
#define ATTN_LDMATRIX(function, name)                                          \
  ATTN_DEVICE void function(uint32_t(&words)[4], SharedAddress row) {          \
    asm volatile(                                                              \
        "ldmatrix.sync.aligned.m8n8.x4." name ".b16 {%0, %1, %2, %3}, [%4];\n" \
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])       \
        : "r"(row)                                                             \
        : "memory");                                                           \
  }
ATTN_LDMATRIX(load_matrices, "shared")
ATTN_LDMATRIX(load_matrices_transposed, "trans.shared")
#undef ATTN_LDMATRIX

// c (16 x 8) += a (16 x 16) @ b (16 x 8), and two numbers rounded to a pair.
#define ATTN_TYPE(type, name)                                                \
  ATTN_DEVICE void mma(                                                      \
      type, float(&c)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) { \
    asm volatile(                                                            \
        "mma.sync.aligned.m16n8k16.row.col.f32." name "." name               \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "                \
        "{%0, %1, %2, %3};\n"                                                \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));     \
  }                                                                          \
  ATTN_DEVICE uint32_t pack(type, float low, float high) {                   \
    uint32_t word;                                                           \
    asm("cvt.rn." name "x2.f32 %0, %1, %2;\n"                                \
        : "=r"(word)                                                         \
        : "f"(high), "f"(low));                                              \
    return word;                                                             \
  }
ATTN_TYPE(c10::Half, "f16")
ATTN_TYPE(c10::BFloat16, "bf16")
#undef ATTN_TYPE

// Writes 16 bytes to shared memory, which are read after the next barrier.
ATTN_DEVICE void store_shared(void* to, uint4 value) {
  *static_cast<uint4*>(to) = value;
}

// Its relative error is 2^-11: less than half of bfloat16's rounding, and as
// much as float16's.
ATTN_DEVICE float tanh_approximate(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Within one unit in the last place.
ATTN_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// x within [-limit, limit]; NaN stays NaN, unlike in std::min and std::max.
ATTN_DEVICE float clamp(float x, float limit) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;\n" : "=f"(y) : "f"(x), "f"(limit));
  asm("max.NaN.f32 %0, %0, %1;\n" : "+f"(y) : "f"(-limit));
  return y;
}

// Stores 16 bytes that this kernel does not read again.
ATTN_DEVICE void store_streaming(void* to, uint4 value) {
  __stcs(static_cast<uint4*>(to), value);
}

} // namespace at::native::attn_fused
