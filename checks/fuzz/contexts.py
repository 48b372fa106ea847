"""The contexts that a case runs in: modes, subclasses, transforms and hooks. None changes what is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

Attn = Callable[[Tensor, Tensor, Tensor], Any]
Manager = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Context:
    """How a context changes the function, what surrounds forward and backward, and what its results must equal.

    `same_bits`: the same kernels run, so results equal those of plain eager mode bit for bit. Otherwise they obey the
    rule of the numerics.
    """

    around: Manager = contextlib.nullcontext
    around_backward: Manager = contextlib.nullcontext
    """Surrounds the first backward."""
    function: Callable[[Attn], Attn] = lambda attn: attn
    wrap: Callable[[Tensor], Tensor] = lambda t: t
    unwrap: Callable[[Any], Any] = lambda t: t
    same_bits: bool = True
    compiled: bool = False
    """Whether the backward gets contiguous gradients, and zeros for one that does not come in."""
    backward: bool = True
    """Whether anything can be differentiated in it."""
    twice: bool = True
    """Whether a gradient that was made in it can be differentiated."""
    often: int = 20
    """How often it is drawn, compared with the others: less often where a case takes longer in it."""


class PassOn(TorchDispatchMode):
    """Passes every operator on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class CallOn(TorchFunctionMode):
    """Passes every call on."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Module(torch.nn.Module):
    """attn with its inputs as parameters would have them."""

    def __init__(self, attn: Attn) -> None:
        super().__init__()
        self.attn = attn
        for name in "qkv":
            self.register_buffer(name, torch.zeros(0))

    def forward(self) -> Any:
        return self.attn(self.q, self.k, self.v)


def _functional(attn: Attn) -> Attn:
    module = Module(attn)
    return lambda q, k, v: torch.func.functional_call(module, {"q": q, "k": k, "v": v}, ())


def _checkpointed(attn: Attn) -> Attn:
    return lambda q, k, v: checkpoint(lambda *inputs: tuple(attn(*inputs)), q, k, v, use_reentrant=False)


def _compiled(attn: Attn) -> Attn:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        torch._dynamo.reset()
        return torch.compile(lambda *inputs: tuple(attn(*inputs)), backend="aot_eager", dynamic=False)(q, k, v)

    return call


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _packed() -> contextlib.AbstractContextManager[object]:
    return saved_tensors_hooks(lambda t: [t.detach()], lambda packed: packed[0])


def _doubled(t: Tensor) -> Tensor:
    # A wrapper hides a lazy conjugate or sign of what it wraps, and nobody resolves it: composition is wrong there too.
    inner = t.detach().resolve_conj().resolve_neg()
    wrapped: Tensor = TwoTensor(inner, inner)
    return wrapped


def _first(t: Any) -> Any:
    return pytree.tree_map(lambda x: x.a if isinstance(x, TwoTensor) else x, t)


CONTEXTS: Mapping[str, Context] = {
    "plain": Context(often=160),
    "dispatch mode": Context(PassOn),
    "FLOP counter": Context(lambda: FlopCounterMode(display=False), often=8),
    "mutation of saved tensors": Context(allow_mutation_on_saved_tensors, often=8),
    "function mode": Context(CallOn),
    "subclass": Context(wrap=_doubled, unwrap=_first, often=10),
    "autocast of the backward": Context(around_backward=lambda: torch.autocast("cpu", torch.bfloat16)),
    "functional_call": Context(function=_functional, often=10),
    "checkpoint": Context(function=_checkpointed, often=10),
    "saved-tensor hooks": Context(_packed),
    "deterministic": Context(_deterministic),
    "inference mode": Context(torch.inference_mode, backward=False, often=10),
    "no_grad": Context(torch.no_grad, backward=False, often=10),
    "autocast": Context(lambda: torch.autocast("cpu", torch.bfloat16), same_bits=False),
    "vmap": Context(same_bits=False, often=10),
    "aot_eager": Context(function=_compiled, compiled=True, twice=False, often=4),
}
