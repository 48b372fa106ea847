// For releases before 2.10: how CUDA sources there ask, in the words of newer
// ones, whether float32 products may run in TF32. nvcc reads it first.
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 10
#include <ATen/Context.h>

namespace at {

#if TORCH_VERSION_MINOR == 9

// 2.9 names by strings what later releases name by enumerators.
struct Float32Backend {
  static constexpr const char* CUDA = "cuda";
};
struct Float32Op {
  static constexpr const char* MATMUL = "matmul";
};
struct Float32Precision {
  static constexpr const char* TF32 = "tf32";
};

#else

// One switch for all of CUDA; 2.9 and later refuse to read it where the newer
// setting differs from it.
struct Float32Precision {
  static constexpr bool TF32 = true;
};
#define float32Precision(backend, op) allowTF32CuBLAS()

#endif

} // namespace at
#endif
