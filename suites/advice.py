"""Adds to a failure the row of the guide's map that the test is about, for whoever adds an operator."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.testing._internal import common_utils

COMMAND = "TORCH_FORK_COMMAND"
"""The environment variable in which `fork run` says how it was called."""

HOME = Path(__file__).resolve().parents[1]
TESTS = HOME / "test/test_ops.py"
MAP = HOME / "guide/adding_an_operator.md"
ROWS = {
    "TestCommon.test_errors": "the checks",
    "TestCommon.test_numpy_ref": "an OpInfo",
    "TestCommon.test_dtypes": "an OpInfo",
    "TestFakeTensor": "a generic kernel",
    "TestMeta": "a generic kernel",
    "TestProxyTensorOpInfo": "a generic kernel",
    "TestEagerFusionOpInfo": "a generic kernel",
    "TestBwdGradients.test_fn_grad": "the formula",
    "TestBwdGradients.test_fn_gradgrad": "double backward",
    "TestFwdGradients": "forward mode",
    "TestDecomp": "a decomposition",
    "TestOperators.test_jvp": "forward mode",
    "TestOperators.test_vmapvjp_has_batch_rule": "batch rules",
    "TestOperators.test_vmapjvpall_has_batch_rule": "batch rules",
    "TestVmapOperatorsOpInfo": "batch rules",
    "TestInductorOpInfo": "Inductor",
    "TestOpsUnbacked": "the checks",
    "TestDTensorOps": "distributed tensors",
}
"""Test, or class of tests, -> row of the map."""

REASONS = {
    "_VariableFunctionsClass": "TorchDynamo",  # what Dynamo calls an operator that its list lacks
    "hit the vmap fallback": "batch rules",
    "yields no sample": "an OpInfo",
    "NotImplementedError not raised": "an OpInfo",  # it says that the operator cannot do what it can
}
"""Words of a failure -> row of the map. They say more than the test, which meets several rows on its way."""


def advice(suite: str, test: str, said: str = "") -> str | None:
    """The sentence for a failure of one test, None where no row is its subject."""
    told = next((row for words, row in REASONS.items() if words in said), None)
    row = told or ROWS.get(f"{suite}.{test}") or ROWS.get(suite)
    return f"See the row '{row}' of the map in {MAP}: what it is for, and where torch.attn has it." if row else None


def repeat_with_fork() -> None:
    """Lets PyTorch's line that repeats a failed test begin with the command that chose this fork."""
    command = os.environ.get(COMMAND)
    original = common_utils.print_repro_on_failure
    if command:
        common_utils.print_repro_on_failure = lambda parts: original(
            [*parts[:-1], f"{command} {parts[-1].replace('test/test_ops.py', shlex.quote(str(TESTS)), 1)}"]
        )


def with_advice(test: Callable[..., Any], suite: str) -> Callable[..., Any]:
    """The test, whose failures end with the advice."""

    @functools.wraps(test)
    def advised(*args: Any, **kwargs: Any) -> Any:
        try:
            return test(*args, **kwargs)
        except unittest.SkipTest:
            raise
        except Exception as error:
            sentence = advice(suite, test.__name__, str(error))
            if sentence is None:
                raise
            if hasattr(error, "add_note"):
                error.add_note(sentence)
            else:  # Python 3.10
                print(f"{suite}.{test.__name__}: {sentence}", file=sys.stderr)
            raise

    return advised
