"""The OpInfo of torch.attn: its sample, reference and error inputs, and its NumPy reference."""

import re
from functools import partial

import numpy as np
import torch
from torch.testing import make_tensor
from torch.testing._internal.common_dtype import floating_and_complex_types_and
from torch.testing._internal.common_methods_invocations import L, M, S
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput


def make_attn_arg(device, dtype):
    # tanh saturates within a few units and, for complex numbers, has poles at
    # i pi / 2: wider inputs would have gradients of zero, or without bound.
    bound = 0.5 if dtype.is_complex else 1
    return partial(make_tensor, device=device, dtype=dtype, low=-bound, high=bound)


def sample_inputs_attn(op_info, device, dtype, requires_grad, **kwargs):
    make_arg = partial(make_attn_arg(device, dtype), requires_grad=requires_grad)

    # leading dimensions, M, N, D, E: as many queries as keys or not, and each size empty
    for leading, m, n, d, e in (
        ((), S, S, 3, 2),
        ((), 2, 2, S, 3),
        ((), 1, 1, 1, 1),
        ((), 3, S, 2, 4),
        ((), 0, 3, 2, 4),
        ((), 3, 0, 2, 4),
        ((), 3, 2, 0, 4),
        ((), 3, 2, 4, 0),
        ((2,), 3, 3, 3, 3),
        ((2,), 1, S, 3, 2),
        ((0,), 3, 4, 2, 1),
        ((2, 1, 3), 2, 3, 1, 2),
    ):
        shapes = (m, d), (n, d), (n, e)
        q, k, v = (make_arg((*leading, *shape)) for shape in shapes)
        yield SampleInput(q, args=(k, v))

    # conjugate views are not among the samples: TestMathBits makes them
    def transposed(*shape):
        return make_attn_arg(device, dtype)(shape).mT.requires_grad_(requires_grad)

    yield SampleInput(transposed(3, S), args=(make_arg((S, 3)), make_arg((S, 2))))
    yield SampleInput(make_arg((S, 3)), args=(transposed(3, S), transposed(2, S)))

    # heads as a projection leaves them: (batch, rows, heads, width) with rows and heads exchanged
    def heads(*shape):
        return make_attn_arg(device, dtype)(shape).transpose(1, 2).requires_grad_(requires_grad)

    yield SampleInput(heads(2, 3, 2, 4), args=(heads(2, S, 2, 4), heads(2, S, 2, 3)))

    # as wide as heads of attention are, in the dtypes of tensor cores
    if dtype in (torch.float16, torch.bfloat16):
        yield SampleInput(make_arg((8, 64)), args=(make_arg((8, 64)), make_arg((8, 64))))


def reference_inputs_attn(op_info, device, dtype, requires_grad, **kwargs):
    yield from sample_inputs_attn(op_info, device, dtype, requires_grad, **kwargs)

    make_arg = partial(make_attn_arg(device, dtype), requires_grad=requires_grad)
    for n, d, e in ((M, S, L), (L, M, S), (S, M, L), (L, S, M), (L, 1, M), (1, M, L)):
        yield SampleInput(make_arg((n, d)), args=(make_arg((n, d)), make_arg((n, e))))
        yield SampleInput(make_arg((2, S, d)), args=(make_arg((2, n, d)), make_arg((2, n, e))))

    # every other column, every other row
    yield SampleInput(
        make_arg((M, 2 * S))[:, ::2],
        args=(make_arg((M, 2 * S))[:, 1::2], make_arg((2 * M, L))[::2]),
    )

    # neither gradcheck nor forward mode can write into expanded memory
    if not requires_grad:
        yield SampleInput(
            make_arg((1, 3)).expand(S, 3),
            args=(make_arg((S, 1)).expand(S, 3), make_arg((1, 1)).expand(S, 2)),
        )


def error_inputs_attn(op_info, device, **kwargs):
    make_arg = partial(make_tensor, device=device, dtype=torch.float32)

    def error(q, k, v, message):
        return ErrorInput(SampleInput(q, args=(k, v)), error_regex=re.escape(f"attn: expected {message}"))

    names = ("q", "k", "v")
    letters = ("M, D", "N, D", "N, E")
    matrices = ((2, 3), (4, 3), (4, 5))

    def sizes(i, shape):
        return f"{names[i]} (*, {letters[i]}) = {list(shape)}"

    for i, name in enumerate(names):
        for shape in ((), (2,)):
            args = (make_arg(shape if i == j else matrix) for j, matrix in enumerate(matrices))
            yield error(*args, f"{name} to have at least two dimensions, but got {sizes(i, shape)}")

    def differ(who, what, leading, i, shape):
        shapes = [shape if i == j else (*leading, *matrix) for j, matrix in enumerate(matrices)]
        found = ", ".join(sizes(j, shapes[j]) for j, name in enumerate(names) if name in who)
        return error(*map(make_arg, shapes), f"{who} to have the same {what}, but got {found}")

    for leading in ((), (7,), (1, 1)):
        for i, matrix in enumerate(matrices):
            yield differ("q, k and v", "leading dimensions", leading, i, (1, *matrix))
        for i in (0, 1):
            yield differ("q and k", "D", leading, i, (*leading, matrices[i][0], 6))
        for i in (1, 2):
            yield differ("k and v", "N", leading, i, (*leading, 6, matrices[i][1]))

    for i in range(3):
        dtypes = ["Half" if i == j else "Float" for j in range(3)]
        q, k, v = (make_arg(shape, dtype=torch.float16) if i == j else make_arg(shape)
                   for j, shape in enumerate(matrices))
        yield error(q, k, v, "q, k and v to have the same dtype, but got "
                    f"q {dtypes[0]}, k {dtypes[1]}, v {dtypes[2]}")

    for dtype, name in ((torch.int64, "Long"), (torch.bool, "Bool"), (torch.complex32, "ComplexHalf"),
                        (torch.float8_e4m3fn, "Float8_e4m3fn")):
        yield error(*(make_arg(shape, dtype=dtype) for shape in matrices),
                    f"inputs of float16, bfloat16, float32, float64, complex64 or complex128, but got {name}")

    for i in range(3):
        q, k, v = (make_arg(shape, device="meta") if i == j else make_arg(shape)
                   for j, shape in enumerate(matrices))
        yield error(q, k, v, "q, k and v to have the same device, but got "
                    f"q {q.device}, k {k.device}, v {v.device}")


def reference_attn(q, k, v):
    attn = np.tanh(q @ np.swapaxes(k, -1, -2))
    return attn @ v, attn


op_db: list[OpInfo] = [
    OpInfo('attn',
           dtypes=floating_and_complex_types_and(torch.float16, torch.bfloat16),
           ref=reference_attn,
           supports_out=False,
           supports_forward_ad=True,
           supports_fwgrad_bwgrad=True,
           sample_inputs_func=sample_inputs_attn,
           reference_inputs_func=reference_inputs_attn,
           error_inputs_func=error_inputs_attn),
]
