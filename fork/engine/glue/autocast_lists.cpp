// Registers what a stack adds to autocast's lists with the devices whose
// registrations are made from these lists.
#include <ATen/autocast_mode.h>

// From here on, the lists have the stack's own entries only.
#undef AT_FORALL_LOWER_PRECISION_FP
#undef AT_FORALL_FP32
#undef AT_FORALL_PROMOTE
#include <fork_autocast_lists.h>

#ifndef AT_FORALL_LOWER_PRECISION_FP
#define AT_FORALL_LOWER_PRECISION_FP(_)
#endif
#ifndef AT_FORALL_FP32
#define AT_FORALL_FP32(_)
#endif
#ifndef AT_FORALL_PROMOTE
#define AT_FORALL_PROMOTE(_)
#endif

#define LOWER(...) KERNEL(DEVICE, __VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL(DEVICE, __VA_ARGS__, fp32)
#define PROMOTE(...) KERNEL(DEVICE, __VA_ARGS__, promote)
#define REGISTER(key, device)                        \
  TORCH_LIBRARY_IMPL(aten, key, m) {                 \
    constexpr auto DEVICE = c10::DeviceType::device; \
    AT_FORALL_LOWER_PRECISION_FP(LOWER)              \
    AT_FORALL_FP32(FP32)                             \
    AT_FORALL_PROMOTE(PROMOTE)                       \
  }
REGISTER(Autocast, CUDA)
REGISTER(AutocastXPU, XPU)
REGISTER(AutocastMTIA, MTIA)

// Other sources follow in the same unit.
#undef LOWER
#undef FP32
#undef PROMOTE
#undef REGISTER
