// attn's fused kernels in float16 on tensor cores.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnLaunch.cuh>

INSTANTIATE_ATTN(HalfCores<c10::Half>)

#endif // !USE_ROCM
