"""einsum writes into a tensor that it is given, whatever path it takes."""

import torch

a, b, c = torch.rand(2, 3), torch.rand(3, 4), torch.rand(4, 5)
out = torch.empty(0)
for operands, equation in (((a, b), "ij,jk->ik"), ((a, b, c), "ij,jk,kl->il"), ((a,), "ij->ji")):
    expected = torch.einsum(equation, *operands)
    assert torch.einsum(equation, *operands, out=out) is out
    torch.testing.assert_close(out, expected)
    assert torch.einsum(equation, list(operands), out=out) is out
kept = torch.zeros(2, 4)
place = kept.data_ptr()
torch.einsum("ij,jk->ik", a, b, out=kept)
assert kept.data_ptr() == place
torch.testing.assert_close(kept, a @ b)
