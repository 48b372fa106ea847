"""`python -m checks.memory.programs NAME`: what runs with the guarding allocator; ends with 0 or says what is wrong."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fork.arguments import Parser, at_least, status

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
SIZES = (
    (1, 1, 1),
    (2, 3, 5),
    (3, 32, 16),
    (7, 1, 2),
    (16, 16, 16),
    (33, 64, 17),
    (65, 32, 64),
    (130, 48, 80),
    (257, 64, 64),
    (9, 500, 600),
)
MASKS = tuple(m for m in itertools.product((False, True), repeat=3) if any(m))


def inputs(
    n: int, d: int, e: int, dtype: torch.dtype, m: int | None = None, lead: tuple[int, ...] = ()
) -> list[Tensor]:
    """q, k, v, grad_output, grad_attn; M is N if it is not given."""
    generator = torch.Generator().manual_seed(n)
    m = n if m is None else m
    sizes = [(*lead, *size) for size in ((m, d), (n, d), (n, e), (m, e), (m, n))]
    return [torch.randn(size, generator=generator).mul_(0.3).to(dtype) for size in sizes]


def backward(
    tensors: Sequence[Tensor | None], attn: Tensor, mask: tuple[bool, ...] = (True, True, True)
) -> tuple[Tensor, ...]:
    q, k, v, grad_output, grad_attn = tensors
    return tuple(torch.ops.aten._attn_backward(grad_output, grad_attn, q, k, v, attn, mask))


def ends() -> None:
    """Every size, dtype, mask and thread count; a touch beyond an end kills the process, NaN from beyond shows."""
    for dtype, size, threads in itertools.product(DTYPES, SIZES, (1, 2, 5)):
        torch.set_num_threads(threads)
        tensors = inputs(*size, dtype)
        output, attn = torch.attn(*tensors[:3])
        results = [output, attn]
        for mask in MASKS:
            results += [g for g in backward(tensors, attn, mask) if g is not None]
        if not all(torch.view_as_real(t).isfinite().all() if t.is_complex() else t.isfinite().all() for t in results):
            raise SystemExit(f"NaN from memory that nobody wrote: {dtype}, size {size}, {threads} threads")


def beyond() -> None:
    """Reads one byte beyond the end of a tensor: the guard must end the process."""
    t = torch.zeros(1024)
    ctypes.string_at(t.data_ptr() + t.nbytes, 1)


def failures(guard: ctypes.CDLL) -> None:
    """Every allocation of forward and backward fails once; each failure is an error, and the next call is right."""
    for dtype, size in itertools.product(DTYPES, ((65, 32, 64), (300, 64, 64), (9, 500, 600))):
        tensors = inputs(*size, dtype)
        attn = torch.attn(*tensors[:3])[1]
        expected = (*torch.attn(*tensors[:3]), *backward(tensors, attn))

        def run(tensors: list[Tensor] = tensors, attn: Tensor = attn) -> tuple[Tensor, ...]:
            return (*torch.attn(*tensors[:3]), *backward(tensors, attn))

        failed = 0
        for nth in _until_none_fails(guard, run):
            failed = nth
            again = run()
            if not all(torch.equal(a, b) for a, b in zip(again, expected, strict=True)):
                raise SystemExit(f"wrong after allocation {nth} failed: {dtype}, size {size}")
        if failed < 4:
            raise SystemExit(f"only {failed} allocations were seen: {dtype}, size {size}")


def _until_none_fails(guard: ctypes.CDLL, run: Callable[[], object]) -> Iterator[int]:
    for nth in itertools.count(1):
        guard.guard_fail(nth)
        try:
            run()
        except RuntimeError as error:
            if "allocate" not in str(error) and "memory" not in str(error):
                raise
        pending = guard.guard_pending()
        guard.guard_fail(0)
        if pending:
            return
        yield nth


THREADS = (1, 2, 3, 8, 16, 64)


def peaks(guard: ctypes.CDLL) -> None:
    """Bytes beside inputs and results at a peak are few.

    They are those of attn, of the inputs in float32, 4 MiB, or 3 << 16 numbers a thread, 7 << 16 where products
    of bfloat16 are packed. Threads that share a matrix have partial sums beside these, of at most attn's size. How much
    of it is held at once depends on how many of the threads run at once.
    """
    for dtype, (lead, m, n, d, e), threads in itertools.product(
        DTYPES[:4],
        (
            *(((), n, n, d, e) for n, d, e in ((300, 64, 64), (1024, 64, 64), (1024, 2, 128), (1500, 16, 100))),
            ((), 4096, 4096, 64, 64),
            *(((b,), m, n, 64, 64) for b, m, n in ((64, 128, 128), (3, 512, 700), (5, 256, 256), (33, 70, 1100))),
        ),
        (1, 2, 3, 8, 16, 64),
    ):
        tensors = inputs(n, d, e, dtype, m, lead)
        torch.set_num_threads(threads)
        attn = torch.attn(*tensors[:3])[1]
        width = max(4, dtype.itemsize)
        numbers = (7 if dtype == torch.bfloat16 else 3) << 16
        partial = attn.nbytes if threads > math.prod(lead) else 0
        scratch = partial + threads * numbers * width
        most = max(attn.nbytes, 4 << 20, sum(t.numel() for t in tensors[:3]) * width, scratch)
        for call in (lambda t=tensors: torch.attn(*t[:3]), lambda t=tensors, a=attn: backward(t, a)):
            call()
            before = guard.guard_live()
            guard.guard_peak()
            results = call()
            extra = guard.guard_peak() - before - sum(t.nbytes for t in results)
            if extra > most:
                raise SystemExit(f"{dtype}, {lead} {m} x {n}, {threads} threads: {extra} bytes, {most} are allowed")


def unwritten(guard: ctypes.CDLL) -> None:
    """New memory holds signalling NaN. No arithmetic uses it, or the processor would set a flag."""
    torch.set_num_threads(1)
    for dtype, size, given in itertools.product(DTYPES[:4], SIZES, ((3, 4), (3,), (4,))):
        guard.guard_fill(0)
        tensors = [t if i < 3 or i in given else None for i, t in enumerate(inputs(*size, dtype))]
        # It signals as a bfloat16 and as a float32, which the sums of 16 bits are, or else as a float64.
        guard.guard_fill(0x7FF47FF47FF47FF4 if dtype == torch.float64 else 0x7FBF7FBF7FBF7FBF)
        attn = torch.attn(*tensors[:3])[1]
        for mask in ((), *MASKS):
            if _signals(backward, tensors, attn, mask) if mask else _signals(torch.attn, *tensors[:3]):
                raise SystemExit(f"read before it was written: {dtype}, size {size}, gradients {given}, mask {mask}")
    guard.guard_fill(0xFFFFFFFFFFFFFFFF)


def _signals(call: Callable[..., object], *args: object) -> bool:
    """Whether a call uses a signalling NaN, at two places of memory.

    GCC divides two float32 as four. The other two may be half of an address, which can read as such a NaN. It is none
    where memory begins 8 MiB further on, since such addresses fill 4 MiB.
    """
    libm = ctypes.CDLL("libm.so.6")
    invalid = 1  # FE_INVALID of x86
    for _ in range(2):
        libm.feclearexcept(invalid)
        call(*args)
        if not libm.fetestexcept(invalid):
            return False
        torch.empty(8 << 20, dtype=torch.uint8)
    return True


def resident() -> int:
    """Bytes of resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def calls(many: int) -> None:
    """Memory after many calls of every path is that after a few: values, gradients, errors, hooks that raise."""

    def raising(grad: Tensor) -> Tensor:
        raise ValueError("a hook of the user's")

    def hooked(q: Tensor, k: Tensor, v: Tensor) -> None:
        q = q.detach().requires_grad_()
        output, _ = torch.attn(q, k, v)
        output.register_hook(raising)
        with contextlib.suppress(ValueError):
            output.sum().backward()

    def refused(q: Tensor, k: Tensor, v: Tensor) -> None:
        with contextlib.suppress(RuntimeError):
            torch.attn(q, k[1:], v)

    def differentiated(q: Tensor, k: Tensor, v: Tensor) -> None:
        q = q.detach().requires_grad_()
        torch.attn(q, k, v)[0].sum().backward()

    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        q, k, v, *_ = inputs(8, 4, 4, dtype)
        paths = [lambda q, k, v: torch.attn(q, k, v), refused]
        paths += [] if dtype.is_complex else [differentiated, hooked]
        for path in paths:
            for _ in range(1000):
                path(q, k, v)
            before = resident()
            for _ in range(many):
                path(q, k, v)
            if resident() - before > 2**21:
                raise SystemExit(f"{resident() - before} bytes more after {many} calls: {dtype}, {path.__name__}")


def sizes() -> None:
    """Many sizes leave little behind, though oneDNN keeps a kernel for each shape and thread that it meets."""
    torch.set_num_threads(2)

    def call(n: int, d: int, dtype: torch.dtype) -> None:
        q, k, v = (torch.randn(n, d).to(dtype).requires_grad_() for _ in range(3))
        torch.attn(q, k, v)[0].sum().backward()

    for dtype, (widths, rows) in itertools.product(
        (torch.float32, torch.bfloat16), (((64,), range(800, 300, -1)), ((8, 16, 24, 32, 48, 64), range(513, 8, -7)))
    ):
        call(rows[0], widths[0], dtype)
        before = resident()
        for n, d in itertools.product(rows, widths):
            call(n, d, dtype)
        ctypes.CDLL(None).malloc_trim(0)
        grown = (resident() - before) >> 20
        said = f"{dtype}: {grown} MiB more after {len(rows)} sizes and {len(widths)} widths"
        print(said)
        if grown > 64:
            raise SystemExit(f"{said}, 64 are allowed")


def main() -> None:
    parser = Parser(prog="python -m checks.memory.programs", description=__doc__)
    parser.add_argument("name", choices=("ends", "beyond", "failures", "peaks", "unwritten", "calls", "sizes"))
    parser.add_argument("many", nargs="?", type=at_least(1), default=1000, help="calls of each path")
    options = parser.parse_args()
    name = options.name
    torch.manual_seed(0)
    if name in ("ends", "beyond"):
        {"ends": ends, "beyond": beyond}[name]()
    elif name == "calls":
        calls(options.many)
    elif name == "sizes":
        sizes()
    else:
        guard = ctypes.CDLL(None)
        for function in (guard.guard_live, guard.guard_peak, guard.guard_pending):
            function.restype = ctypes.c_size_t
        guard.guard_fail.argtypes = [ctypes.c_size_t]
        guard.guard_fill.argtypes = [ctypes.c_uint64]
        {"failures": failures, "peaks": peaks, "unwritten": unwritten}[name](guard)


if __name__ == "__main__":
    sys.exit(status("checks.memory", main))
