// attn's fused kernels in float64 on tensor cores.
#define TORCH_ASSERT_NO_OPERATORS
#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnTiles.cuh>

template const void* at::native::attn_fused::kernel_of<
    at::native::attn_fused::DoubleCores>(Kernel, int, bool);

#endif // !USE_ROCM
