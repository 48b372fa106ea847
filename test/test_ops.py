"""PyTorch's OpInfo suites for any operator of `op_db`: `python test/test_ops.py -k attn`.

The torch wheel contains the infrastructure of these tests, but not the test files. `suites/` holds the checks, under
PyTorch's names of classes and tests. `pytest -n 2 test/test_ops.py -k attn` runs the same tests. With
`PYTORCH_SOURCE=/path/to/checkout`, PyTorch's own files run instead, one after the other, with the same arguments.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from suites.upstream import run_upstream

SOURCE = os.environ.get("PYTORCH_SOURCE")
if SOURCE and __name__ == "__main__":
    sys.exit(run_upstream(Path(SOURCE), sys.argv[1:]))

from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import run_tests

from suites.advice import repeat_with_fork
from suites.aot import TestEagerFusionOpInfo
from suites.common import TestCommon
from suites.compliance import TestCompositeCompliance
from suites.decomp import TestDecomp
from suites.dtensor import TestDTensorOps
from suites.fake import TestFakeTensor, TestTags
from suites.functorch import TestOperators
from suites.fx import TestNormalizeOperators, TestOperatorSignatures, TestOpInfoSampleFunctions
from suites.gradients import TestBwdGradients, TestFwdGradients
from suites.inductor import TestInductorOpInfo, TestOpsUnbacked
from suites.jit import TestJit
from suites.mathbits import TestMathBits
from suites.meta import TestMeta
from suites.proxy import TestProxyTensorOpInfo
from suites.schema import TestOpInfo, TestSchemaCheckModeOpInfo
from suites.vmap import TestVmapOperatorsOpInfo

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
# PyTorch does the same: tracing does not depend on the device, and few machines have four GPUs.
CPU_ONLY = (
    TestProxyTensorOpInfo,
    TestEagerFusionOpInfo,
    TestDTensorOps,
    TestOpInfo,
    TestOperatorSignatures,
    TestNormalizeOperators,
)

repeat_with_fork()
# PyTorch's line that repeats a failed test names the file of the test's class, and only this one runs by itself.
for suite in EVERY_DEVICE + CPU_ONLY:
    suite.__module__ = __name__
for suite in EVERY_DEVICE:
    instantiate_device_type_tests(suite, globals())
for suite in CPU_ONLY:
    instantiate_device_type_tests(suite, globals(), only_for="cpu")
del suite

if __name__ == "__main__":
    run_tests()
