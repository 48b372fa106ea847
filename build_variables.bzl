# Bazel and the mobile builds list the sources that CMake finds by itself.

aten_native_source_codegen_list = [
    "aten/src/ATen/native/cpu/AttnKernel.cpp",
]

aten_native_source_non_codegen_list = [
    "aten/src/ATen/native/attn.cpp",
]
