# Buck and the lite interpreter list the sources that CMake and Bazel find by themselves.

aten_native_source_codegen_list = [
    "aten/src/ATen/native/cpu/AttnKernel.cpp",
]

aten_native_source_non_codegen_list = [
    "aten/src/ATen/native/AttnCPU.cpp",
    "aten/src/ATen/native/AttnFused.cpp",
    "aten/src/ATen/native/attn.cpp",
]
