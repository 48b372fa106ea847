"""Runs PyTorch's own test files from a checkout instead of the suites here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FILES = (
    "test_ops.py",
    "test_ops_gradients.py",
    "test_ops_fwd_gradients.py",
    "test_ops_jit.py",
    "test_meta.py",
    "test_decomp.py",
    "test_proxy_tensor.py",
    "functorch/test_ops.py",
    "functorch/test_vmap.py",
    "functorch/test_aotdispatch.py",
    "inductor/test_torchinductor_opinfo.py",
    "test_ops_unbacked.py",
    "distributed/tensor/test_dtensor_ops.py",
    "test_schema_check.py",
    "test_fx.py",
    "test_fx_experimental.py",
    "export/opinfo_schema.py",
    "test_testing.py",
)
"""The files of PyTorch's test folder that reach an operator through its OpInfo."""


def run_upstream(source: Path, arguments: Sequence[str]) -> int:
    """Runs each file that the checkout has, one after the other, with the same arguments.

    Returns the number of files that failed (0: all passed). A checkout without any of the files is an error: one
    sentence, exit status 2.
    """
    folder = source / "test"
    files = [name for name in FILES if (folder / name).is_file()]
    if not files:
        print(f"PYTORCH_SOURCE={source}: no test files of PyTorch there", file=sys.stderr)
        return 2
    failed = []
    for name in files:
        print(f"== {name}", flush=True)
        # As PyTorch's run_test.py: from the test folder, which files in its sub-folders import from too. The checkout's
        # root, whose torch/ is not a built package, stays off the path.
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
        command = [sys.executable, name, *arguments]
        code = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}).returncode
        # unittest exits with 5 if -k selected no test of a file.
        if code not in (0, 5):
            failed.append(name)
    print(f"== {len(files) - len(failed)} of {len(files)} files passed" + "".join(f"\n   failed: {n}" for n in failed))
    return len(failed)
