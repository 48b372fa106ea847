"""The softmax of a CSR tensor is one, of the elements that it has."""

import torch

dense = torch.tensor([[1.0, 0.0, 2.0], [0.0, -3.0, 0.0], [0.0, 0.0, 0.0]])
found = torch.sparse.softmax(dense.to_sparse_csr(), 1)
assert found.layout == torch.sparse_csr
assert found.crow_indices().tolist() == [0, 2, 3, 3] and found.col_indices().tolist() == [0, 2, 1]
expected = torch.tensor([*torch.softmax(torch.tensor([1.0, 2.0]), 0), 1.0])
torch.testing.assert_close(found.values(), expected)
torch.testing.assert_close(found.to_dense(), torch.sparse.softmax(dense.to_sparse(), 1).to_dense())
