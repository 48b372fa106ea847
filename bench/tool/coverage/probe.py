"""Runs in a fork: replaces the base's old copies of changed functions by traps, works, and says which of them ran.

`python probe.py FILE`: FILE is JSON. `old` has for each library the addresses of the old copies; `exported` the names
that the dynamic linker has to find in the fork's libraries, `ours`; and with `long`, every operator of OpInfo runs.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import signal
import sys

import torch

from fork.engine.link.proof import begins, inside, staying

PAGE = mmap.PAGESIZE
TRAPS = {"x86_64": b"\xcc", "aarch64": b"\x00\x00\x20\xd4"}
# Where Linux keeps the program counter in the context that it gives to a signal's handler, and what a trap adds to it.
COUNTERS = {"x86_64": (168, 1), "aarch64": (440, 0)}
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Action(ctypes.Structure):
    """The C library's `struct sigaction`."""

    _fields_ = [
        ("handler", HANDLER),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


def elsewhere(names: list[str], ours: list[str]) -> list[str]:
    """The names that PyTorch's libraries do not find in these of ours: they search in the order that `torch._C` has."""
    scope = ctypes.CDLL(torch._C.__file__)
    places = {name: ctypes.cast(getattr(scope, name), ctypes.c_void_p).value or 0 for name in names}
    return [name for name, place in places.items() if not inside(place, list(map(os.path.basename, ours)))]


def trap(address: int, libc: ctypes.CDLL) -> bytes:
    """Replaces the first instruction there; returns its bytes."""
    word = TRAPS[platform.machine()]
    old = ctypes.string_at(address, len(word))
    start = address // PAGE * PAGE
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(2 * PAGE), 7):
        raise OSError(ctypes.get_errno(), f"the code at {address:x} cannot be changed")
    ctypes.memmove(address, word, len(word))
    return old


def kept(old: dict[str, list[tuple[str, int]]], ours: list[str]) -> set[str]:
    """The old copies, such as `f of libtorch_cpu.so`, that do not jump to ours."""
    libraries = begins()
    copies = [(name, lib, offset) for lib, functions in old.items() if lib in libraries for name, offset in functions]
    return set(staying(copies, list(map(os.path.basename, ours))))


def watch(old: dict[str, list[tuple[str, int]]], ours: list[str]) -> list[str]:
    """Sets the traps, but for what jumps to ours; the list that is returned fills with the names of old functions that
    run after all."""
    libc = ctypes.CDLL(None, use_errno=True)
    ran: list[str] = []
    held: dict[int, tuple[str, bytes]] = {}
    place, behind = COUNTERS[platform.machine()]

    def stopped(_number: int, _info: int, context: int) -> None:
        counter = ctypes.c_uint64.from_address(context + place)
        name, word = held.get(counter.value - behind, ("", b""))
        if not word:
            os._exit(99)  # a trap of somebody else
        ran.append(name)
        ctypes.memmove(counter.value - behind, word, len(word))  # and the function runs on
        counter.value -= behind

    action = Action(HANDLER(stopped), flags=4 | 0x40000000)  # SA_SIGINFO | SA_NODEFER
    watch.kept = action  # type: ignore[attr-defined]
    libc.sigaction(signal.SIGTRAP, ctypes.byref(action), None)
    libraries = begins()
    stay = kept(old, ours)
    for library, functions in old.items():
        if bias := libraries.get(library):
            for name, offset in functions:
                if bias + offset not in held and f"{name} of {library}" in stay:
                    held[bias + offset] = (name, trap(bias + offset, libc))
    return ran


def train() -> None:
    """A few steps of several kinds of layers, with autograd, TorchScript, an optimizer, and linear algebra."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(144, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(torch.rand(2, 3, 8, 8)), torch.tensor([1, 2]))
        loss.backward()
        optimizer.step()
    torch.nn.LSTM(4, 4)(torch.rand(3, 2, 4))[0].sum().backward()
    scripted = torch.jit.script(model.eval())
    for _ in range(3):
        scripted(torch.rand(2, 3, 8, 8)).sum().backward()
    matrix = torch.rand(4, 4, requires_grad=True)
    (torch.linalg.svd(matrix)[1].sum() + torch.fft.rfft(matrix).abs().sum() + matrix.to_sparse().sum()).backward()
    assert loss.isfinite() and matrix.grad is not None


def operators() -> int:
    """Each operator of OpInfo with its first samples, forward and backward; returns how many ran."""
    from torch.testing._internal.common_methods_invocations import op_db

    count = 0
    for operator in op_db:
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64):
            if dtype not in operator.supported_dtypes("cpu"):
                continue
            grad = dtype in operator.supported_backward_dtypes("cpu")
            try:
                for sample in list(operator.sample_inputs("cpu", dtype, requires_grad=grad))[:4]:
                    made = operator(sample.input, *sample.args, **sample.kwargs)
                    results = [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
                    results = [t.abs().sum() for t in results if t.requires_grad]
                    if results:
                        sum(results[1:], results[0]).backward()
                    count += 1
            except Exception:  # What a build refuses says nothing of a change
                continue
    return count


def main() -> None:
    with open(sys.argv[1]) as file:
        wanted = json.load(file)
    unbound = elsewhere(wanted["exported"], wanted["ours"])
    copies = {f"{name} of {library}" for library, functions in wanted["old"].items() for name, _ in functions}
    jumps = sorted(copies - kept(wanted["old"], wanted["ours"]))
    ran = watch(wanted["old"], wanted["ours"])
    train()
    samples = operators() if wanted["long"] else 0
    found = {"unbound": unbound, "jumps": jumps, "ran": sorted(set(ran)), "samples": samples}
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
