// attn's fused kernels in float64 on tensor cores.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnLaunch.cuh>

INSTANTIATE_ATTN(DoubleCores)

#endif // !USE_ROCM
