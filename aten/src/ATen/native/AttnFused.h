// Whether attn runs fused kernels.
#pragma once

#include <c10/util/env.h>

namespace at::native {

// Whether they run, where `pays` says whether they are faster. In tests the
// variable TORCH_ATTN_KERNELS decides: 1 makes them run for all that they
// serve, 0 for nothing.
inline bool attn_runs_fused(bool pays) {
  static const auto forced = c10::utils::check_env("TORCH_ATTN_KERNELS");
  return forced.value_or(pays);
}

} // namespace at::native
