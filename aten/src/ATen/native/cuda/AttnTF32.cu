// attn's fused kernels in float32 on tensor cores, rounded to TensorFloat-32.
#define TORCH_ASSERT_NO_OPERATORS
#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnTiles.cuh>

template const void* at::native::attn_fused::kernel_of<
    at::native::attn_fused::TF32Cores>(Kernel, int, bool);

#endif // !USE_ROCM
