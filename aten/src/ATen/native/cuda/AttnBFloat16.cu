// attn's fused kernels in bfloat16.
#define TORCH_ASSERT_NO_OPERATORS
#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnTiles.cuh>

template const void* at::native::attn_fused::kernel_of<c10::BFloat16>(
    Kernel,
    int);

#endif // !USE_ROCM
