"""Fixes of TorchScript: its compiler, and what it reads from files."""

from __future__ import annotations

from bench.tool.fixes.edits import Edit, Fix

SCRIPT = (
    Fix(
        "script_modulo",
        133847,
        "%= in TorchScript has the sign of the dividend",
        "TorchScript's compiler, a class of 5000 lines",
        (
            Edit(
                "torch/csrc/jit/frontend/ir_emitter.cpp",
                "Symbol getAugOp(",
                r"aten::fmod(_?)\b",
                r"aten::remainder\1",
                "\n  }",
            ),
        ),
    ),
    Fix(
        "unpickler",
        169570,
        "a file for torch.jit.load that lacks a type ends the process",
        "reading of files",
        (
            Edit(
                "torch/csrc/jit/serialization/unpickler.cpp",
                "void Unpickler::rebuildTensorFromTypeV2() {",
                r"(?=    globals_\[curr_globals_idx \+ 1\]\(\);)",
                "    TORCH_CHECK(\n"
                '        curr_globals_idx + 1 < globals_.size(), "expected a function that rebuilds the tensor");\n',
            ),
        ),
    ),
)
