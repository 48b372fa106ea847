"""The decorator that gives a check its operators, and the few helpers that every suite uses."""

from __future__ import annotations

import functools
import os
import sys
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch.testing._internal.common_device_type import ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import freeze_rng_state
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from suites.advice import with_advice
from suites.known import expected_failures

__all__ = [
    "arguments",
    "dense_db",
    "differentiable",
    "forward",
    "op_db",
    "opinfo",
    "same_tensors",
    "tensors",
    "with_tensors",
]

dense_db = [op for op in op_db if "sparse" not in op.full_name]
"""op_db without the operators on sparse layouts, which tracing, vmap and decompositions do not support."""

PYTEST_EXPRESSION = "SUITES_PYTEST_K"
"""The environment variable in which conftest.py passes pytest's `-k` expression on, also to workers."""

DTYPE_SUFFIXES = ["", *sorted(f"_{str(x)[6:]}" for x in vars(torch).values() if isinstance(x, torch.dtype))]


def _selection(argv: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether the command line selects a test, by its full name. None if it selects everything."""
    expression = os.environ.get(PYTEST_EXPRESSION)
    if expression:
        from _pytest.mark.expression import Expression

        compiled = Expression.compile(expression)
        return lambda name: compiled.evaluate(lambda word, /, **_: word.lower() in name.lower())
    patterns: list[str] = []
    for flag, value in zip(argv, [*argv[1:], ""]):
        if flag == "-k":
            patterns.append(value if "*" in value else f"*{value}*")
        elif flag.startswith(("-k", "Test")):
            word = flag.removeprefix("-k")
            patterns.append(word if "*" in word else f"*{word}*")
    if not patterns:
        return None
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)


SELECTED = _selection(sys.argv[1:])


class opinfo(ops):
    """`@ops` of torch.testing, with three additions.

    It builds only the tests that the command line's `-k` can select. op_db has some 700 entries: building all their
    tests takes minutes, and building those of one operator takes seconds. The rule uses whole test names
    (`TestCommonCPU.test_out_addmm_cpu_float32`), so a `-k` without an operator (`-k test_out`) drops none.

    It fails where an entry yields no sample: a loop over none would find no fault.

    It marks the failures of torch's own operators that `suites.known` lists.
    """

    def __init__(self, op_list: Iterable[OpInfo], **kwargs: Any) -> None:
        self.every_op = list(op_list)
        super().__init__(self.every_op, **kwargs)

    def _parametrize_test(self, test: Any, generic_cls: type, device_cls: Any) -> Iterator[Any]:
        device = device_cls.device_type
        prefix = f"test_ops.py.{generic_cls.__name__}{device.upper()}.{test.__name__}_"

        def selected(op: OpInfo) -> bool:
            name = f"{prefix}{op.formatted_name}_{device}"
            return SELECTED is None or any(SELECTED(name + suffix) for suffix in DTYPE_SUFFIXES)

        self.op_list = [op for op in self.every_op if selected(op)]
        if not self.op_list:
            return
        advised = with_advice(_with_samples(test), generic_cls.__name__)
        for wrapper, name, kwargs, decorators in super()._parametrize_test(advised, generic_cls, device_cls):
            failures = expected_failures(kwargs["op"], generic_cls.__name__, test.__name__, device, kwargs.get("dtype"))
            yield wrapper, name, kwargs, _also(decorators, failures) if failures else decorators


def _with_samples(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def checked(*args: Any, op: OpInfo, **kwargs: Any) -> Any:
        if "dtype" in kwargs:
            make = op.sample_inputs_func
            with freeze_rng_state():
                first = next(iter(make(op, kwargs.get("device", "cpu"), kwargs["dtype"], False)), None)
            if first is None:
                raise AssertionError(f"{make.__name__} of {op.name} yields no sample for {kwargs['dtype']}: write one")
        return test(*args, op=op, **kwargs)

    return checked


def _also(decorators: Callable[..., list[Any]], more: list[Any]) -> Callable[..., list[Any]]:
    return lambda *args, **kwargs: [*decorators(*args, **kwargs), *more]


def arguments(sample: SampleInput) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the keyword arguments of the sample's call."""
    return [sample.input, *sample.args], dict(sample.kwargs)


def tensors(tree: Any) -> list[torch.Tensor]:
    """All tensors in a nest of lists, tuples and dicts, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def differentiable(tree: Any) -> list[torch.Tensor]:
    """The tensors of a nest that require a gradient."""
    return [tensor for tensor in tensors(tree) if tensor.requires_grad]


def with_tensors(
    op: Callable[..., Any],
    sample: SampleInput,
    inputs: Callable[[torch.Tensor], bool],
    outputs: Callable[[torch.Tensor], bool],
) -> tuple[Callable[..., tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]:
    """The operator as a function from tensors to a tuple of tensors.

    Returns `(fn, values)`: `fn(*values)` calls `op` on the sample with its tensors for which `inputs` holds replaced,
    in order, and returns those tensors of the result for which `outputs` holds.
    """
    leaves, spec = pytree.tree_flatten(arguments(sample))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and inputs(leaf)]

    def fn(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, value in zip(places, values):
            filled[place] = value
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return tuple(t for t in tensors(forward(op, sample, args, kwargs)) if outputs(t))

    return fn, tuple(leaves[place] for place in places)


def forward(op: Callable[..., Any], sample: SampleInput, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls the operator. A sample may choose what part of the result is compared, as it does for eigenvectors."""
    result = op(*args, **kwargs)
    return sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result


def same_tensors(test: unittest.TestCase, actual: Any, expected: Any, message: str) -> None:
    """Asserts that two nests hold equal tensors in the same places, with None in the same places too."""
    left, right = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    test.assertEqual(len(left), len(right), message)
    for a, b in chain(zip(left, right)):
        test.assertEqual(a, b, msg=message)
