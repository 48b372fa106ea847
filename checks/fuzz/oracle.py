"""Says whether torch.attn is right on a case: against wider numbers, composition, and itself in plain eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import reject
from torch import Tensor

from checks.fuzz.case import Case
from checks.fuzz.contexts import CONTEXTS, Attn, Context

PLAIN = CONTEXTS["plain"]
# Room for the error of a composition that was lucky: units of the sum of the absolute products.
UNITS = 8
FACTOR = 4
Results = dict[str, Tensor | None]


class Wrong(AssertionError):
    """torch.attn is wrong on a case."""


def composition(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    attn = torch.tanh(q @ k.t())
    return attn @ v, attn


def majorant(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Of non-negative inputs: values and derivatives are the sums of all absolute products, or larger.

    |tanh z| and its first two derivatives are at most those of 2 z + 2 z^2, for complex z up to 0.9 too.
    """
    scores = q @ k.t()
    attn = 2 * (scores + scores * scores)
    return attn @ v, attn


def check(case: Case) -> None:
    """Raises Wrong, with the case's program, where torch.attn is wrong."""
    torch.set_num_threads(case.threads)
    context = CONTEXTS[case.context]
    if not context.backward:
        case = replace(case, kind="values")
    inputs = case.inputs()
    try:
        expected = _results(composition, case, context, inputs)
    except (RuntimeError, NotImplementedError, TypeError):
        reject()  # What composition cannot do in this context nobody asks of torch.attn
    got = _results(torch.attn, case, context, inputs)
    # Below a mode a BLAS gets conjugated operands, not the word "conjugated": complex results may differ by a rounding.
    if context.same_bits and case.context != "plain" and not case.dtype.startswith("complex"):
        _compare_bits(case, got, _results(torch.attn, case, PLAIN, inputs))
    _compare_values(case, got, expected, inputs)


def _results(attn: Attn, case: Case, context: Context, inputs: Sequence[Tensor]) -> Results:
    if case.context == "vmap" and context is not PLAIN:
        return _batched(attn, case, inputs)
    return _single(context.function(attn), case, context, inputs)


def _single(attn: Attn, case: Case, context: Context, inputs: Sequence[Tensor]) -> Results:
    """Every result of the case's kind, by name."""
    leaves: dict[int, Tensor] = {}
    wanted = case.wanted if case.kind in ("gradients", "double gradients") else (False,) * 3
    for t, flag in zip(inputs[:3], wanted):
        leaf = leaves.setdefault(id(t), context.wrap(t.detach()))
        leaf.requires_grad_(flag or leaf.requires_grad)
    q, k, v = (leaves[id(t)] for t in inputs[:3])
    grads = [context.wrap(t.detach()) for t in inputs[3:]]
    with context.around():
        if case.kind == "tangents":
            return _tangents(attn, context, (q, k, v), case.seed)
        output, scores = attn(q, k, v)
        results: Results = {"output": context.unwrap(output), "attn": context.unwrap(scores)}
        if case.kind == "values":
            return results
        results |= _differentiate(case, context, (output, scores), list(leaves.values()), grads)
    return results


def _differentiate(
    case: Case, context: Context, outputs: Sequence[Tensor], leaves: list[Tensor], grads: list[Tensor]
) -> Results:
    twice = case.kind == "double gradients"
    pairs = [(y, g.to(y.dtype)) for y, g, here in zip(outputs, grads, case.incoming) if here and y.requires_grad]
    leaves = [t for t in leaves if t.requires_grad]
    if not pairs:
        return {}
    if twice:
        pairs = [(y, g.requires_grad_()) for y, g in pairs]
    with context.around_backward():
        first = torch.autograd.grad(
            [y for y, _ in pairs], leaves, [g for _, g in pairs], create_graph=twice, allow_unused=True
        )
    results: Results = {f"gradient {i}": None if g is None else context.unwrap(g).detach() for i, g in enumerate(first)}
    again = [g for g in first if g is not None and g.requires_grad]
    if twice and again:
        of = [*leaves, *(g for _, g in pairs)]
        seeds = [torch.ones_like(g) for g in again]
        second = torch.autograd.grad(again, of, seeds, allow_unused=True)
        results |= {f"double gradient {i}": None if g is None else context.unwrap(g) for i, g in enumerate(second)}
    return results


def _tangents(attn: Attn, context: Context, inputs: Sequence[Tensor], seed: int) -> Results:
    generator = torch.Generator().manual_seed(seed)
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(t, torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.dtype))
            for t in inputs
        ]
        outputs = [forward_ad.unpack_dual(y) for y in attn(*duals)]
        return {
            name: context.unwrap(t)
            for (primal, tangent), names in zip(outputs, (("output", "output's tangent"), ("attn", "attn's tangent")))
            for t, name in zip((primal, tangent), names)
        }


def _batched(attn: Attn, case: Case, inputs: Sequence[Tensor]) -> Results:
    """The case and a second one, whose every input is twice as large, under vmap; the first one's results."""
    flags = [bool(case.seed >> i & 1) for i in range(5)]
    if not any(flags[:3]):
        flags[0] = True
    stacked = [torch.stack((t, t)) if flag else t for t, flag in zip(inputs, flags)]
    dims = tuple(0 if flag else None for flag in flags)

    def run(q: Tensor, k: Tensor, v: Tensor, grad_output: Tensor, grad_attn: Tensor) -> tuple[Tensor, ...]:
        if case.kind in ("values", "tangents"):
            output, scores = attn(q, k, v)
            return output, scores
        (output, scores), backward = torch.func.vjp(lambda *x: tuple(attn(*x)), q, k, v)
        given = (grad_output, grad_attn)
        return output, scores, *backward(tuple(g if f else g * 0 for g, f in zip(given, case.incoming)))

    found = torch.vmap(run, in_dims=dims)(*stacked)
    names = ("output", "attn", *(f"gradient of {name}" for name in "qkv"))
    return {name: t[0] for name, t in zip(names, found)}


def _loop(attn: Attn, case: Case, inputs: Sequence[Tensor]) -> Results:
    """What `_batched` computes, without vmap."""
    q, k, v, *given = (t.detach() for t in inputs)
    if case.kind in ("values", "tangents"):
        return dict(zip(("output", "attn"), attn(q, k, v)))
    values, backward = torch.func.vjp(lambda *x: tuple(attn(*x)), q, k, v)
    grads = backward(tuple(g if f else g * 0 for g, f in zip(given, case.incoming)))
    return dict(zip(("output", "attn", *(f"gradient of {name}" for name in "qkv")), (*values, *grads)))


def _compare_bits(case: Case, got: Results, plain: Results) -> None:
    for name, wanted in plain.items():
        mine = got[name]
        if mine is None or wanted is None:
            if mine is not wanted:
                raise _wrong(case, f"{name} is {_kind(mine)} in {case.context}, {_kind(wanted)} in plain eager mode")
        elif mine.dtype != wanted.dtype or not torch.equal(_bits(mine), _bits(wanted)):
            raise _wrong(case, f"{name} differs from plain eager mode in {case.context}: {_difference(mine, wanted)}")


def _compare_values(case: Case, got: Results, expected: Results, inputs: Sequence[Tensor]) -> None:
    run: Callable[[Attn, Case, Sequence[Tensor]], Results] = _loop if case.context == "vmap" else _plain
    wide = {id(t): _wide(t) for t in inputs}  # Two inputs that are one tensor stay one
    exact = run(composition, case, [wide[id(t)] for t in inputs])
    # No error is larger than the sum of the absolute products allows.
    sizes = {key: t.abs() for key, t in wide.items()}
    room = run(majorant, case, [sizes[id(t)] for t in inputs])
    for name, plain in expected.items():
        mine = got.get(name)
        if mine is not None and plain is not None and mine.dtype != plain.dtype:
            raise _wrong(case, f"{name} is {mine.dtype}, of composition {plain.dtype}")
        if mine is None or exact.get(name) is None:
            if plain is not None and mine is None and plain.count_nonzero():
                raise _wrong(case, f"{name} is None, of composition it is a tensor")
            continue
        plain = torch.zeros_like(mine) if plain is None else plain
        _compare(case, name, mine, plain, exact[name], room.get(name))


def _plain(attn: Attn, case: Case, inputs: Sequence[Tensor]) -> Results:
    return _single(attn, case, PLAIN, inputs)


def _compare(case: Case, name: str, mine: Tensor, plain: Tensor, exact: Tensor | None, room: Tensor | None) -> None:
    assert exact is not None
    if mine.shape != exact.shape:
        raise _wrong(case, f"{name} has size {list(mine.shape)}, expected {list(exact.shape)}")
    if not mine.numel():
        return
    got, other = _wide(mine), _wide(plain)
    flushed = "denormal" in case.values and "infinity" in case.values  # bfloat16 products may take denormals as zeros
    lost = got.isnan() & ~other.isnan() & ~exact.isnan()
    if lost.any() and not flushed:
        raise _wrong(case, f"{name} has {int(lost.sum())} NaN where composition has none")
    finite = got.isfinite() & other.isfinite() & exact.isfinite()
    errors, plains = (got - exact).abs()[finite], (other - exact).abs()[finite]
    if not errors.numel():
        return
    narrow = torch.bfloat16 if case.context == "autocast" and mine.dtype != torch.float64 else mine.dtype
    unit = torch.finfo(narrow).eps
    allowed = FACTOR * plains.max() + UNITS * unit * (1 if room is None else room.abs()[finite].nan_to_num(torch.inf))
    allowed = allowed + torch.finfo(narrow).smallest_normal
    beyond = errors > allowed
    if beyond.any():
        at = int((errors / allowed).argmax())
        share = f"{errors[at]:.3g}, allowed {allowed.expand_as(errors)[at]:.3g}, of composition {plains.max():.3g}"
        raise _wrong(case, f"{name} has an error of {share}")


def _wide(t: Tensor) -> Tensor:
    wide = t.detach().to(torch.complex128 if t.is_complex() else torch.float64)
    return wide.resolve_conj().resolve_neg().clone()


def _bits(t: Tensor) -> Tensor:
    return t.detach().resolve_conj().resolve_neg().contiguous().view(torch.uint8)


def _kind(t: Tensor | None) -> str:
    return "None" if t is None else "a tensor"


def _difference(mine: Tensor, wanted: Tensor) -> str:
    if mine.dtype != wanted.dtype:
        return f"{mine.dtype} instead of {wanted.dtype}"
    return f"largest difference {(_wide(mine) - _wide(wanted)).abs().max():.3g}"


def _wrong(case: Case, what: str) -> Wrong:
    return Wrong(f"{what}\n\n{case.program()}")
