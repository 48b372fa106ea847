"""Says whether torch.attn is right on a case: against wider numbers, composition, and itself in plain eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from checks.fuzz.case import LARGE, Case
from checks.fuzz.contexts import CONTEXTS, Attn, Context

PLAIN = CONTEXTS["plain"]
# Room for the error of a composition that was lucky: units of the sum of the absolute products.
UNITS = 8
FACTOR = 4
# How many compositions with slightly changed operands decide which NaN are by chance.
MOVED = 16
# How many rows of a large case are compared.
ROWS = 24
Results = dict[str, Tensor | None]


class Wrong(AssertionError):
    """torch.attn is wrong on a case."""


class Refused(Exception):
    """Neither torch.attn nor composition can do a case in its context."""


def composition(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    attn = torch.tanh(q @ k.mT)
    return attn @ v, attn


def majorant(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Of non-negative inputs: values and derivatives are the sums of all absolute products, or larger.

    |tanh z| and its first two derivatives are at most those of 2 z + 2 z^2, for complex z up to 0.9 too.
    """
    scores = q @ k.mT
    attn = 2 * (scores + scores * scores)
    return attn @ v, attn


def check(case: Case) -> None:
    """Raises Wrong where torch.attn is wrong, and Refused where composition raises too."""
    if torch.get_num_threads() != case.threads:
        torch.set_num_threads(case.threads)
    context = CONTEXTS[case.context]
    if not context.backward:
        case = replace(case, kind="values")
    if not context.twice and case.kind == "double gradients":
        case = replace(case, kind="gradients")
    inputs = case.inputs()
    if max(case.m, case.n) > LARGE and case.context == "plain":
        _compare_some_rows(case, inputs)
        return
    try:
        got = _results(torch.attn, case, context, inputs)
    except (RuntimeError, NotImplementedError, TypeError):
        if _refuses(case, context, inputs):
            raise Refused from None
        raise
    if context.compiled:
        # With other strides a BLAS sums in another order, so the references get what the backward got.
        given = [g.contiguous() if here else g.new_zeros(g.shape) for g, here in zip(inputs[3:], case.incoming)]
        case, inputs = replace(case, incoming=(True, True)), [*inputs[:3], *given]
    # Below a mode a BLAS gets conjugated operands, not the word "conjugated": complex results may differ by a rounding.
    if context.same_bits and context is not PLAIN and not case.dtype.startswith("complex"):
        _compare_bits(case, got, _results(torch.attn, case, PLAIN, inputs))
    # Where the kernels are those of plain eager mode, it is plain composition that is as good.
    _compare_values(case, got, PLAIN if context.same_bits else context, inputs)


def _refuses(case: Case, context: Context, inputs: Sequence[Tensor]) -> bool:
    try:
        _results(composition, case, context, inputs)
    except (RuntimeError, NotImplementedError, TypeError):
        return True
    return False


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
    """The case twice under vmap, whose operands share some inputs; the first one's results."""
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
    for name, mine in got.items():
        wanted = plain[name]
        if mine is None or wanted is None:
            if mine is not wanted:
                raise Wrong(f"{name} is {_kind(mine)} in {case.context}, {_kind(wanted)} in plain eager mode")
        elif mine.dtype != wanted.dtype or not torch.equal(_bits(mine), _bits(wanted)):
            raise Wrong(f"{name} differs from plain eager mode in {case.context}: {_difference(mine, wanted)}")


def _compare_values(case: Case, got: Results, context: Context, inputs: Sequence[Tensor]) -> None:
    """Results are as exact as composition's in that context."""
    expected = _results(composition, case, context, inputs)
    run: Callable[[Attn, Case, Sequence[Tensor]], Results] = _loop if case.context == "vmap" else _plain
    wide = {id(t): _wide(t) for t in inputs}  # Two inputs that are one tensor stay one
    exact = run(composition, case, [wide[id(t)] for t in inputs])
    room: Results = {}
    for name, mine in got.items():
        plain, exactly = expected.get(name), exact.get(name)
        if mine is not None and plain is not None and mine.dtype != plain.dtype:
            raise Wrong(f"{name} is {mine.dtype}, of composition {plain.dtype}")
        if mine is None or exactly is None:
            if plain is not None and mine is None and plain.count_nonzero():
                raise Wrong(f"{name} is None, of composition it is a tensor")
            continue
        plain = torch.zeros_like(mine) if plain is None else plain
        if mine.shape != exactly.shape:
            raise Wrong(f"{name} has size {list(mine.shape)}, expected {list(exactly.shape)}")
        if mine.numel() and not _as_good(mine, plain, exactly):
            sizes = {key: t.abs() for key, t in wide.items()}
            room = room or run(majorant, case, [sizes[id(t)] for t in inputs])
            spoilt = mine.isnan() & ~plain.isnan() & ~exactly.isnan()
            spoilt |= mine.isinf() & plain.isfinite() & exactly.isfinite()
            most = room[name]
            if most is not None:  # Both may go beyond the dtype's range, and NaN is where infinities of two signs meet
                spoilt &= ~(exactly.isfinite() & (most > torch.finfo(mine.dtype).max))
            if spoilt.any() and (spoilt & ~_by_chance(case, name, mine, context, inputs)).any():
                raise Wrong(f"{name} has {int(spoilt.sum())} NaN or infinities where composition has none")
            _compare(case, name, mine, plain, exactly, most)


def _plain(attn: Attn, case: Case, inputs: Sequence[Tensor]) -> Results:
    return _single(attn, case, PLAIN, inputs)


def _as_good(mine: Tensor, plain: Tensor, exact: Tensor) -> bool:
    """Whether no error is beyond composition's largest: quick, and false where anything is infinite or NaN."""
    largest = torch.linalg.vector_norm((torch.stack((mine, plain)) - exact).flatten(1), torch.inf, 1).tolist()
    return bool(largest[0] <= FACTOR * largest[1])


def _compare(case: Case, name: str, mine: Tensor, plain: Tensor, exact: Tensor, room: Tensor | None) -> None:
    """No error is larger than the sum of the absolute products allows."""
    narrow = torch.bfloat16 if case.context == "autocast" and mine.dtype != torch.float64 else mine.dtype
    # A reference of the same precision has errors of its own. Where terms are equal, all of a chain's round alike.
    same = mine.dtype == exact.dtype
    units = torch.finfo(narrow).eps * (max(4 * UNITS, case.m, case.n, case.d, case.e) if same else UNITS)
    # A denormal number that a product takes as zero is multiplied by the other factor.
    lost = torch.finfo(narrow).smallest_normal * (256 if "denormal" in case.values else 1)
    slack = units * (torch.ones(()) if room is None else room.abs()) + lost
    errors, plains = (mine - exact).abs(), (plain - exact).abs()
    if bool((errors <= slack + FACTOR * plains.max()).all()):
        return
    finite = mine.isfinite() & plain.isfinite() & exact.isfinite()
    if not finite.any():
        return
    largest = plains[finite].max()
    errors, allowed = errors[finite], (slack.nan_to_num(torch.inf).expand_as(exact)[finite] + FACTOR * largest)
    if (errors > allowed).any():
        at = int((errors / allowed).argmax())
        share = f"{errors[at]:.3g}, allowed {allowed[at]:.3g}, of composition {largest:.3g}"
        raise Wrong(f"{name} has an error of {share}")


def _by_chance(case: Case, name: str, mine: Tensor, context: Context, inputs: Sequence[Tensor]) -> Tensor:
    """Where composition, too, has NaN, or infinities where the result has these, with slightly other operands.

    BLAS writes NaN by the strides of its operands, products of a batch write others, and some take denormals as zeros;
    1 - attn^2 is zero or not where attn is nearly 1; and a sum that is nearly zero has its sign, and that of an
    infinity, by its last rounding.
    """
    if case.dtype == "bfloat16" and case.kind in ("double gradients", "tangents"):
        # oneDNN writes NaN into rows that have none, where one beside them has; here its products are others.
        return torch.tensor(bool({"nan", "infinity"} & set(case.values)))
    found = []
    for seed in range(MOVED):
        generator = torch.Generator().manual_seed(seed)
        ones = {id(t): _moved(t, generator) for t in inputs}  # Two inputs that are one tensor stay one

        def composed(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator = generator) -> tuple[Tensor, Tensor]:
            attn = _moved(torch.tanh(_moved(_product(q, k.mT, generator), generator)), generator)
            return _product(attn, v, generator), attn

        of = [ones[id(t)] for t in inputs]
        run = _loop(composed, case, of) if case.context == "vmap" else _single(composed, case, context, of)
        found.append(run[name])
    moved = torch.stack([t for t in found if t is not None])
    # Sums of a few digits may have any sign, so NaN stands where infinities do.
    signs = case.dtype == "float16" and case.kind in ("double gradients", "tangents")
    return moved.isnan().any(0) | (mine.isinf() | torch.tensor(signs)) & moved.isinf().any(0)


def _product(a: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    """a @ b, as a batch or matrix by matrix, or as the transpose of a product: so its derivatives are turned, too."""
    if torch.randint(2, (), generator=generator):
        return (b.mT @ a.mT).mT
    if torch.randint(2, (), generator=generator):
        return a @ b if a.dim() > 2 else (a[None] @ b[None])[0]
    if a.dim() == 2:
        return a @ b
    each = [x @ y for x, y in zip(a.flatten(0, -3), b.flatten(0, -3))]
    return torch.stack(each).view(*a.shape[:-1], b.size(-1))


def _moved(t: Tensor, generator: torch.Generator) -> Tensor:
    """The same numbers with other last digits, drawn strides, and denormals or zeros in their place."""
    parts = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    numbers = torch.finfo(parts.dtype)
    parts = parts * (1 + numbers.eps * torch.randint(-2, 3, parts.shape, generator=generator)).to(parts.dtype)
    transposed, flushed = torch.randint(2, (2,), generator=generator).tolist()
    if flushed:
        parts = parts.masked_fill(parts.abs() < numbers.smallest_normal, 0)
    t = torch.view_as_complex(parts) if t.is_complex() else parts
    return t.mT.contiguous().mT if transposed else t.contiguous()


def _compare_some_rows(case: Case, inputs: Sequence[Tensor]) -> None:
    """Compares some rows of output, attn and grad_q, and the same columns of attn and rows of grad_k and grad_v.

    A few rows of q need no others, nor a few rows of k and v, so composition of these is the reference.
    """
    got = _single(torch.attn, case, PLAIN, inputs)
    generator = torch.Generator().manual_seed(case.seed)
    rows, columns = (torch.randperm(size, generator=generator)[:ROWS].sort().values for size in (case.m, case.n))
    q, k, v, grad_output, grad_attn = inputs
    by_rows = [q[..., rows, :], k, v, grad_output[..., rows, :], grad_attn[..., rows, :]]
    by_columns = [q, k[..., columns, :], v[..., columns, :], grad_output, grad_attn[..., columns]]
    leaves = [place for place, flag in enumerate(case.wanted) if flag]
    names = {place: f"gradient {i}" for i, place in enumerate(leaves)}
    of_rows = {"output", "attn", names.get(0)}
    for part, given in (("rows", by_rows), ("columns", by_columns)):
        mine: Results = {}
        for name, t in got.items():
            if (name in of_rows) == (part == "rows"):
                mine[name] = None if t is None else t[..., rows if part == "rows" else columns, :]
            elif name == "attn" and t is not None:
                mine[name] = t[..., columns]
        _compare_values(case, mine, PLAIN, given)


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
    differences = (_wide(mine) - _wide(wanted)).abs()
    others = int((~differences.isfinite() & (_wide(mine) != _wide(wanted)) & ~(mine.isnan() & wanted.isnan())).sum())
    return f"largest difference {differences.nan_to_num(0, 0).max():.3g}, {others} other NaN or infinities"
