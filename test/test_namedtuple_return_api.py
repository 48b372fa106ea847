"""torch.attn in the list of operators with named outputs, and their names."""

from collections import namedtuple

from torch.testing._internal.common_utils import TestCase

import torch

all_operators_with_namedtuple_return = {
    'attn',
}


class TestNamedTupleAPI(TestCase):
    def test_namedtuple_return(self):
        a = torch.randn(5, 5)  # fragment only
        op = namedtuple('op', ['operators', 'input', 'names', 'hasout'])  # fragment only
        operators = [
            op(operators=['attn'], input=(a, a), names=('output', 'attn'), hasout=False),
        ]
        return operators
