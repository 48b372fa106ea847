"""Fixes of ATen's kernels, of the checks before them and of the headers that both include."""

from __future__ import annotations

from bench.tool.fixes.edits import NATIVE, Edit, Fix

REAL = (
    "  TORCH_CHECK(\n      !self.is_complex(),\n"
    '      {}, ": expected real numbers, since complex ones have no order, but got ", self.scalar_type());\n'
)
TOPK = '"topk()"'
BAG_CHECK = """  TORCH_CHECK(
      offsets.numel() > 0 || indices.numel() == 0,
      "embedding_bag: expected an offset for ", indices.numel(), " indices, but got none");
"""
SQUARE_CHECK = """  TORCH_CHECK(
      upscale_factor < (int64_t{1} << 31),
      "pixel_shuffle: expected an upscale_factor whose square is an integer of 64 bits, but got ", upscale_factor);
"""
LEAST = """scalar_t b) {
  if constexpr (std::is_signed_v<scalar_t>) {
    // The least number has no opposite, and the processor's division by -1 would end the process.
    if (b == scalar_t(-1)) {
      using bits = std::make_unsigned_t<scalar_t>;
      return static_cast<scalar_t>(bits(0) - static_cast<bits>(a));
    }
  }
"""

KERNELS = (
    Fix(
        "hardswish",
        148049,
        "the gradient of hardswish at -3 and 3",
        "CPU kernel, three capabilities",
        tuple(
            Edit(f"{NATIVE}/cpu/Activation.cpp", "void hardswish_backward_kernel(", pattern, text)
            for pattern, text in (
                (r"(self_val\)?) < neg_three", r"\1 <= neg_three"),
                (r"(self_val\)?) <= three", r"\1 < three"),
                (r">=? kThreeVec", ">= kThreeVec"),
                (r"< kNegThreeVec", "<= kNegThreeVec"),
            )
        ),
    ),
    Fix(
        "argmax",
        159556,
        "argmax and argmin take a single complex number",
        "structured kernels",
        (
            Edit(
                f"{NATIVE}/ReduceOps.cpp",
                "static void check_argmax_argmin(",
                r"dim\) \{\n",
                f"dim) {{\n{REAL.format('name')}",
            ),
            Edit(
                f"{NATIVE}/Sorting.cpp",
                "TORCH_META_FUNC(topk)",
                r"sorted\) \{\n",
                f"sorted) {{\n{REAL.format(TOPK)}",
            ),
        ),
    ),
    Fix(
        "embedding_bag",
        175487,
        "embedding_bag of float64 without offsets ends the process",
        "an exported function that other sources call",
        (
            Edit(
                f"{NATIVE}/EmbeddingBag.cpp",
                "void check_arguments(",
                r"(?=  AT_DISPATCH_INDEX_TYPES\(offsets)",
                BAG_CHECK,
            ),
        ),
    ),
    Fix(
        "pixel_shuffle",
        163154,
        "pixel_shuffle by a large factor ends the process",
        "check of shapes in a header",
        (
            Edit(
                f"{NATIVE}/PixelShuffle.h",
                "inline void check_pixel_shuffle_shapes(",
                r"(?=  int64_t c = )",
                SQUARE_CHECK,
            ),
        ),
    ),
    Fix(
        "floor_divide",
        190042,
        "floor_divide of the least integer by -1 ends the process",
        "template in a header of c10",
        (Edit("c10/util/generic_math.h", "scalar_t div_floor_integer(", r"scalar_t b\) \{\n", LEAST),),
        ("--cuda", "off"),  # a kernel of the GPU includes it, too, which takes the nvcc of the wheel's CUDA
    ),
    Fix(
        "channel_axis",
        128693,
        "fused_moving_avg_obs_fake_quant with an axis below 0 ends the process",
        "a quantized operator",
        (
            Edit(
                f"{NATIVE}/quantized/cpu/fused_obs_fake_quant.cpp",
                "fused_moving_avg_obs_fake_quant_cpu(",
                r"TORCH_CHECK\(ch_axis < self\.dim\(\), [^;]*;",
                """TORCH_CHECK(
      ch_axis >= 0 && ch_axis < self.dim(),
      "fused_moving_avg_obs_fake_quant: expected an axis of ", self.dim(), " dimensions, but got ", ch_axis);""",
            ),
        ),
    ),
)
