"""`fork run --pr composite -- python -m checks.stack.parity`: the rows of PR 4's table, and whether they work there."""

from __future__ import annotations

import importlib.util
import re
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks import ROOT
from fork.arguments import Parser, status

FILES = [ROOT / "test" / name for name in ("test_attn_explicit.py", "distributed/tensor/test_attn_ops.py")]
# What works beside OpInfo, and how the names of the tests begin that show it. These run on composition too.
PARITY = {
    "layout": {
        "sparse": "TestGradients.test_sparse_inputs",
        "empty": "TestGradients.test_every_subset_of_inputs_and_gradients",
    },
    "transform": {
        "backward of either output": "TestGradients.test_every_subset_of_inputs_and_gradients",
        "double backward of every subset": "TestGradients.test_every_subset_of_the_double_backward",
        "every subset of tangents": "TestGradients.test_every_subset_of_tangents",
        "vmap over every choice of in_dims": "TestTransforms.test_vmap_over_every_choice_of_in_dims",
    },
    "subsystem": {
        "autocast": "TestAutocast.test_forward_and_backward_in_lower_precision",
        "unbacked sizes": "TestTracing.test_unbacked_sizes",
        "torch.compile, aot_eager": "TestTracing.test_compiled_gradients_are_the_eager_ones",
        "torch.compile, Inductor": "TestTracing.test_inductor_with_every_subset_of_inputs_and_outputs",
        "torch.export": "TestTracing.test_export",
        "FLOP counter": "TestTools.test_flop_counter_is_that_of_composition",
        "two derivatives inside modes, subclasses and autocast": "TestContextsCPU.test_derivatives_are_those_outside",
        "DTensor": "TestDTensor.test_rows",
    },
}


def load(file: Path) -> dict[str, Any]:
    """The names of a file of PR 4's tests, by the torch that runs this."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def rows() -> Iterator[tuple[str, str, unittest.TestSuite]]:
    """The kind and the name of each row, and its tests."""
    cases = load(FILES[0]) | load(FILES[1])
    for kind, tests in PARITY.items():
        for row, test in tests.items():
            case, _, prefix = test.partition(".")
            names = unittest.defaultTestLoader.getTestCaseNames(cases[case])
            yield kind, row, unittest.TestSuite(cases[case](x) for x in names if x.startswith(prefix))


def main() -> None:
    Parser(prog="python -m checks.stack.parity", description=__doc__).parse_args()
    print("| | | works |\n| --- | --- | --- |")
    for kind, row, tests in rows():
        result = unittest.TestResult()
        tests.run(result)
        reason = "yes"
        for _, trace in result.failures + result.errors:
            errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", trace, re.MULTILINE)
            reason = errors[-1] if errors else "no"
        print(f"| {kind} | {row} | {reason} |")


if __name__ == "__main__":
    sys.exit(status("checks.stack.parity", main))
