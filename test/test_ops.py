"""PyTorch's OpInfo suites for any operator of `op_db`: `python test/test_ops.py -k attn`.

The torch wheel ships the infrastructure of these tests and not the files, so `fork/suites/` holds the checks, under
PyTorch's class and test names. `pytest -n 2 test/test_ops.py -k attn` runs the same tests. With
`PYTORCH_SOURCE=/path/to/checkout` PyTorch's own files run instead, one after the other, with the same arguments.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from fork.suites.upstream import run_upstream

SOURCE = os.environ.get("PYTORCH_SOURCE")
if SOURCE and __name__ == "__main__":
    sys.exit(run_upstream(Path(SOURCE), sys.argv[1:]))

from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import run_tests

from fork.suites.aot import TestEagerFusionOpInfo
from fork.suites.common import TestCommon
from fork.suites.compliance import TestCompositeCompliance
from fork.suites.decomp import TestDecomp
from fork.suites.dtensor import TestDTensorOps
from fork.suites.fake import TestFakeTensor, TestTags
from fork.suites.functorch import TestOperators
from fork.suites.fx import TestNormalizeOperators, TestOperatorSignatures, TestOpInfoSampleFunctions
from fork.suites.gradients import TestBwdGradients, TestFwdGradients
from fork.suites.inductor import TestInductorOpInfo, TestOpsUnbacked
from fork.suites.jit import TestJit
from fork.suites.mathbits import TestMathBits
from fork.suites.meta import TestMeta
from fork.suites.proxy import TestProxyTensorOpInfo
from fork.suites.schema import TestOpInfo, TestSchemaCheckModeOpInfo
from fork.suites.vmap import TestVmapOperatorsOpInfo

EVERY_DEVICE = (
    TestCommon,
    TestCompositeCompliance,
    TestMathBits,
    TestFakeTensor,
    TestTags,
    TestBwdGradients,
    TestFwdGradients,
    TestJit,
    TestMeta,
    TestDecomp,
    TestOperators,
    TestVmapOperatorsOpInfo,
    TestInductorOpInfo,
    TestOpsUnbacked,
    TestSchemaCheckModeOpInfo,
    TestOpInfoSampleFunctions,
)
# As PyTorch does: tracing does not depend on the device, and four GPUs are not everyone's.
CPU_ONLY = (
    TestProxyTensorOpInfo,
    TestEagerFusionOpInfo,
    TestDTensorOps,
    TestOpInfo,
    TestOperatorSignatures,
    TestNormalizeOperators,
)

for suite in EVERY_DEVICE:
    instantiate_device_type_tests(suite, globals())
for suite in CPU_ONLY:
    instantiate_device_type_tests(suite, globals(), only_for="cpu")
del suite

if __name__ == "__main__":
    run_tests()
