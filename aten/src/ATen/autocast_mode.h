// attn among the operators that autocast runs in lower precision, on the
// devices that share this list.
#pragma once

#include <ATen/ops/attn_ops.h> // fragment only

#define AT_FORALL_LOWER_PRECISION_FP(_) _(attn)
