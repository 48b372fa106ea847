"""Batches for vmap: the same call over stacked inputs and in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from suites.opinfo import arguments

Values = tuple[torch.Tensor, ...]
InDims = tuple[int | None, ...]
Function = Callable[..., Values]


def samples_with_twins(
    op: OpInfo, device: str, dtype: torch.dtype, requires_grad: bool
) -> Iterator[tuple[SampleInput, SampleInput]]:
    """Each sample, and another one with the same sizes and other values, so that the entries of a batch differ.

    Where the second draw has other sizes or other constants, or the operator rejects a mixture of both draws, the
    sample is its own twin.
    """
    draws = zip(
        op.sample_inputs(device, dtype, requires_grad=requires_grad),
        # The method seeds each sample, so a second call would give the same values.
        op.sample_inputs_func(op, device, dtype, requires_grad),
    )
    for sample, twin in draws:
        yield sample, twin if _alike(sample, twin) and _mixable(op, sample, twin) else sample


def _alike(sample: SampleInput, twin: SampleInput) -> bool:
    mine, my_spec = pytree.tree_flatten(arguments(sample))
    other, other_spec = pytree.tree_flatten(arguments(twin))
    if my_spec != other_spec:
        return False
    for a, b in zip(mine, other):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return False
        if isinstance(a, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype or a.stride() != b.stride() or a.is_conj() != b.is_conj():
                return False
            if not (a.is_floating_point() or a.is_complex()) and not torch.equal(a, b):
                return False  # Indices and masks may decide the size of the result.
        elif not isinstance(a, (bool, int, float, complex, str, torch.dtype, torch.device, type(None))) or a != b:
            return False
    return True


def _mixable(op: OpInfo, sample: SampleInput, twin: SampleInput) -> bool:
    mine, spec = pytree.tree_flatten(arguments(sample))
    other = pytree.tree_leaves(arguments(twin))
    for odd in (0, 1):
        mixed = [b if i % 2 == odd else a for i, (a, b) in enumerate(zip(mine, other))]
        args, kwargs = pytree.tree_unflatten(mixed, spec)
        try:
            op(*args, **kwargs)
        except Exception:
            return False
    return True


def batches(values: Values, twins: Values) -> Iterator[tuple[InDims, Values]]:
    """Choices of in_dims, each with the inputs batched accordingly.

    Along the last dimension every non-empty subset of up to ten inputs. Along the first, and of more inputs, all, all
    but one, and one alone; of up to four inputs every subset there too.
    """
    n = len(values)
    every = [c for c in product((True, False), repeat=n) if any(c)] if n <= 10 else []
    single = [tuple(i == j for i in range(n)) for j in range(n)]
    few = list(dict.fromkeys([(True,) * n, *single, *(tuple(not x for x in c) for c in single if n > 1)]))
    for dim, chosen in ((0, every if n <= 4 else few), (-1, every or few)):
        stacked = [torch.stack([a.detach(), b.detach()], dim) for a, b in zip(values, twins)]
        for choice in chosen:
            in_dims = tuple(dim if batched else None for batched in choice)
            yield in_dims, tuple(s if d is not None else a.detach() for s, a, d in zip(stacked, values, in_dims))


def loop(fn: Function, in_dims: Sequence[int | None], values: Values) -> Values:
    """The expected result of vmap: calls the function on each entry of the batch and stacks the results."""
    size = next(v.shape[d] for v, d in zip(values, in_dims) if d is not None)
    entries = [fn(*(v if d is None else v.select(d, i) for v, d in zip(values, in_dims))) for i in range(size)]
    return tuple(torch.stack(results) for results in zip(*entries))


def inside_idle_vmap(fn: Function, in_dims: InDims, values: Values) -> Values:
    """vmap of the function inside another vmap, which batches none of the inputs."""
    idle = torch.vmap(lambda one, *x: fn(*x), (0, *(None for _ in in_dims)))
    ones = torch.ones(2, 1, device=values[0].device)
    return tuple(result.squeeze(1) for result in torch.vmap(idle, (0, *in_dims))(ones, *values))
