"""TestSchemaCheckModeOpInfo, and TestOpInfo of export/opinfo_schema.py: whether schemas are true."""

from __future__ import annotations

from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo

from suites.opinfo import arguments, op_db, opinfo


class TestSchemaCheckModeOpInfo(TestCase):
    @opinfo(op_db)
    def test_schema_correctness(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Every ATen call mutates and aliases exactly what its schema says."""
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            args, kwargs = arguments(sample)
            with SchemaCheckMode():
                op(*args, **kwargs)


class PreDispatchSchemaCheckMode(SchemaCheckMode):
    """The same check on the calls before autograd and decompositions, where torch.export captures them."""

    def __init__(self) -> None:
        self._dispatch_key = torch._C.DispatchKey.PreDispatch
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A schema with aliases or mutation (.out, views) makes no promise that could be broken.
        schema = func._schema
        if schema.is_mutable or any(r.alias_info is not None for r in schema.returns):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class TestOpInfo(TestCase):
    @opinfo(op_db, allowed_dtypes=(torch.float, torch.int))
    def test_schema_check_op(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        sample = next(iter(op.sample_inputs(device, dtype, requires_grad=False)))
        args, kwargs = arguments(sample)
        with enable_python_dispatcher(), PreDispatchSchemaCheckMode():
            op.op(*args, **kwargs)
