"""spdiags has the elements of each diagonal that lie in the matrix, also where that has none, or no rows at all."""

import torch

for rows in (0, 1, 2, 5):
    for columns in (0, 1, 2, 5):
        for offsets in ([-1, 0, 1], [2, -9], [-65, 10]):
            diagonals = torch.arange(1.0, 1 + 3 * len(offsets)).reshape(len(offsets), 3)
            expected = torch.zeros(rows, columns)
            count = 0
            for diagonal, offset in zip(diagonals, offsets):
                for column in range(min(columns, 3)):
                    if 0 <= column - offset < rows:
                        expected[column - offset, column] = diagonal[column]
                        count += 1
            found = torch.sparse.spdiags(diagonals, torch.tensor(offsets), (rows, columns))
            assert found._nnz() == count, (rows, columns, offsets)
            torch.testing.assert_close(found.to_dense(), expected)
