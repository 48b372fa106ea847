"""The documentation of torch.attn."""

import torch
from torch._C import _add_docstr as add_docstr

add_docstr(
    torch.attn,
    r"""
attn(q, k, v) -> (Tensor, Tensor)

Computes attention with :math:`\tanh` in the place of softmax, without a scale or a mask.

.. math::
    \text{attn} = \tanh(q k^{\mathsf{T}}) \qquad
    \text{output} = \text{attn} \; v

:attr:`q`, :attr:`k` and :attr:`v` are matrices, or batches of them with the same leading
dimensions, which are not broadcast.

Entry :math:`(i, j)` of `attn` weighs row :math:`j` of :attr:`v` in row :math:`i` of `output`.
As :math:`\tanh` acts on each entry alone, the weights of a row may be negative, and do not
sum to one. Complex :attr:`k` is transposed, not conjugated.

:func:`torch.nn.functional.scaled_dot_product_attention` has arguments for what is written out here:

* a scale: ``torch.attn(q * scale, k, v)``
* keys that are padding: rows of zeros in :attr:`k`, whose weight is exactly ``0``, as
  :math:`\tanh(0)` is
* a bias of each key: one more column, of ones in :attr:`q` and of the biases in :attr:`k`
* groups of queries that share keys: more rows of :attr:`q`, or :attr:`k` and :attr:`v` expanded
  along one more leading dimension
* a cache of keys: the part that is filled, ``keys.narrow(-2, 0, n)``, which is not copied

There is no dense or causal mask, no dropout of `attn`, and no support of nested tensors.

.. warning::
    A mask of ``-inf``, added to the scores, hides a key from softmax. Here it gives the key the
    weight ``-1``, and no error says so.

Both outputs are differentiable, any number of times and in forward mode too.

`output` lies in memory as :attr:`q` does: dense, its last dimension last and the others in the order
of :attr:`q`'s strides, where expanded dimensions come first; of a lazy conjugate or
negative its copy counts. So ``output.transpose(1, 2)`` is contiguous for heads that are
``x.unflatten(-1, (heads, D)).transpose(1, 2)``. `attn` is contiguous. The gradients of :attr:`q`,
:attr:`k` and :attr:`v` lie as these do.

.. note::
    In autograd's graph, `output` is not computed from `attn`. So a hook on `attn` and
    ``attn.retain_grad()`` see the gradient that `attn` gets from its own uses, without the
    part that comes through `output`. `attn` requires a gradient also where :attr:`v` alone does,
    which gets none from it.

.. note::
    The last bits of results may depend on the number of threads, and ``-0.0`` may become ``0.0``.
    Where a device has fused kernels, the environment variable ``TORCH_ATTN_KERNELS=0``, read once
    by each process, turns them off, and ``1`` turns them on for all that they compute. Code that
    :func:`torch.compile` has in its cache keeps the choice of the process that compiled it.

Args:
    q (Tensor): the queries, of size :math:`(*, M, D)`
    k (Tensor): the keys, of size :math:`(*, N, D)`
    v (Tensor): the values, of size :math:`(*, N, E)`, where :math:`*` is any number of leading
        dimensions

All three must have the same device and the same dtype, which must be ``torch.float16``,
``torch.bfloat16``, ``torch.float32``, ``torch.float64``, ``torch.complex64`` or
``torch.complex128``; any size may be 0.

Returns:
    A named tuple ``(output, attn)`` with the device and dtype of the inputs: `output` of size
    :math:`(*, M, E)` and `attn` of size :math:`(*, M, N)`.

Raises:
    RuntimeError: if an input has fewer than two dimensions, if the leading dimensions,
        :math:`D` of :attr:`q` and :attr:`k`, or :math:`N` of :attr:`k` and :attr:`v` differ, if
        the devices or dtypes differ, or if the dtype is not supported.

.. seealso::
    :func:`torch.nn.functional.scaled_dot_product_attention` for attention with softmax.

Example::

    >>> q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, -0.5]])
    >>> k = torch.tensor([[0.5, 0.0], [1.0, 1.0], [0.0, -1.0]])
    >>> v = torch.tensor([[1.0], [2.0], [4.0]])
    >>> torch.attn(q, k, v)
    torch.return_types.attn(
    output=tensor([[ 1.9853],
            [-1.5232],
            [ 2.0934]]),
    attn=tensor([[ 0.4621,  0.7616,  0.0000],
            [ 0.0000,  0.7616, -0.7616],
            [ 0.2449,  0.0000,  0.4621]]))

    >>> # 8 heads over a batch of 2: 3 queries see 5 keys
    >>> q, k, v = torch.randn(2, 8, 3, 4), torch.randn(2, 8, 5, 4), torch.randn(2, 8, 5, 6)
    >>> output, attn = torch.attn(q, k, v)
    >>> output.shape, attn.shape
    (torch.Size([2, 8, 3, 6]), torch.Size([2, 8, 3, 5]))

    >>> # the last two keys are padding
    >>> valid = torch.tensor([True, True, True, False, False])
    >>> _, attn = torch.attn(q, k.where(valid[:, None], 0), v)
    >>> attn[..., ~valid].abs().max()
    tensor(0.)

    >>> # a bias of each key
    >>> bias = torch.randn(5)
    >>> ones, biases = torch.ones(2, 8, 3, 1), bias[:, None].expand(2, 8, 5, 1)
    >>> _, attn = torch.attn(torch.cat((q, ones), -1), torch.cat((k, biases), -1), v)
    >>> torch.allclose(attn, torch.tanh(q @ k.mT + bias), atol=1e-5)
    True

    >>> # 8 heads of queries share 2 of keys: as more rows, and expanded
    >>> k, v, groups = k[:, :2], v[:, :2], q.unflatten(1, (2, 4))
    >>> rows = torch.attn(groups.flatten(2, 3), k, v).output.unflatten(2, (4, 3))
    >>> k, v = (x.unsqueeze(2).expand(-1, -1, 4, -1, -1) for x in (k, v))
    >>> torch.allclose(rows, torch.attn(groups, k, v).output, atol=1e-5)
    True

    >>> # one query sees the 7 keys that a cache of 100 holds
    >>> keys, values = torch.zeros(2, 8, 100, 4), torch.zeros(2, 8, 100, 6)
    >>> torch.attn(q[..., :1, :], keys.narrow(-2, 0, 7), values.narrow(-2, 0, 7)).attn.shape
    torch.Size([2, 8, 1, 7])
""",
)
