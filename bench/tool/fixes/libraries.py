"""Fixes of c10, and of torch/csrc without its bindings: TorchScript, the profiler, AOTInductor's shim, c10d."""

from __future__ import annotations

from bench.tool.fixes.edits import Edit, Fix

GLOO = "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"
PROFILER = "torch/csrc/profiler/util.cpp"
INDEX = """const auto index = std::stoi(device_index_str);
      index_ = static_cast<c10::DeviceIndex>(index);
      TORCH_CHECK(index_ == index);"""
SHIM = "torch/csrc/inductor/aoti_torch"
LAST_ERROR = """std::string& torch::aot_inductor::last_error() {
  thread_local std::string message;
  return message;
}

const char* aoti_torch_last_error() {
  return torch::aot_inductor::last_error().c_str();
}

"""

LIBRARIES = (
    Fix(
        "gloo_average",
        149781,
        "gloo has no average (ReduceOp.AVG)",
        "c10d: a class that other libraries make",
        (
            Edit(
                GLOO,
                "ReduceFunc toFunction(",
                r"(case ReduceOp::AVG:\n\s+)TORCH_CHECK\([^;]*;\n\s+break;",
                r"\1return ReduceFunc(&::gloo::sum<T>);",
            ),
            Edit(
                GLOO,
                "class AsyncAllreduceWork ",
                r"gloo::allreduce\(opts\);\n",
                r"gloo::allreduce(opts);\n    if (reduceOp == ReduceOp::AVG) tensors[0].div_(context->size);\n",
            ),
        ),
    ),
    Fix(
        "device_index",
        192527,
        "torch.device takes an index that is too large as another one",
        "constructor in c10",
        (Edit("c10/core/Device.cpp", "Device::Device(const std::string&", r"index_ = static_cast<.*;", INDEX),),
    ),
    Fix(
        "sub_flops",
        82951,
        "the profiler counts no operations of a subtraction",
        "the profiler",
        (
            Edit(PROFILER, "static constexpr auto kAddOp", r"\A", 'static constexpr auto kSubOp = "aten::sub";\n'),
            Edit(PROFILER, "saveExtraArgs(", r"fname == kAddOp", r"\g<0> || fname == kSubOp"),
            Edit(PROFILER, "uint64_t computeFlops(", r"op_name == kAddOp", r"\g<0> || op_name == kSubOp"),
        ),
    ),
    Fix(
        "last_error",
        180135,
        "AOTInductor's C functions drop the message of an error",
        "a macro in a header, and a new C function",
        (
            Edit(
                f"{SHIM}/utils.h",
                "#define AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE",
                r"(LOG\(ERROR\) << [^;\n]*) << (e\.what\(\)); ",
                r"torch::aot_inductor::last_error() = \2; \\\n    \g<0>",
                "\n\n",
            ),
            Edit(
                f"{SHIM}/utils.h",
                "namespace torch::aot_inductor {",
                r"\Z",
                "\n\n// What the last function that failed in this thread said.\nTORCH_API std::string& last_error();",
                "\n\n",
            ),
            Edit(
                f"{SHIM}/c/shim.h",
                "AOTI_TORCH_EXPORT AOTITorchError\naoti_torch_get_dim(",
                r"\A",
                "AOTI_TORCH_EXPORT const char* aoti_torch_last_error();\n\n",
            ),
            Edit(f"{SHIM}/shim_common.cpp", "AOTITorchError aoti_torch_get_dim(", r"\A", LAST_ERROR),
        ),
    ),
)
