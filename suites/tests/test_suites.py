"""Each check of suites finds the kind of fault that it is for, and passes the same operator without the fault."""

from __future__ import annotations

import inspect
import sys
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import CPUTestBase
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from suites.advice import MAP, advice, with_advice
from suites.aot import TestEagerFusionOpInfo
from suites.common import TestCommon
from suites.compliance import TestCompositeCompliance
from suites.decomp import TestDecomp, tolerances
from suites.dtensor import TestDTensorOps
from suites.fake import TestFakeTensor
from suites.functorch import TestOperators
from suites.gradients import TestBwdGradients, TestFwdGradients
from suites.inductor import TestInductorOpInfo, TestOpsUnbacked
from suites.jit import TestJit
from suites.known import KNOWN, UNBACKED
from suites.mathbits import TestMathBits
from suites.meta import TestMeta
from suites.opinfo import PYTEST_EXPRESSION, _selection, _with_samples
from suites.proxy import TestProxyTensorOpInfo
from suites.schema import TestOpInfo, TestSchemaCheckModeOpInfo
from suites.upstream import run_upstream
from suites.vmap import TestVmapOperatorsOpInfo

# pytest would collect these classes, which are templates, by their names.
for _name in [n for n in globals() if n.startswith("Test")]:
    globals()[_name].__test__ = False


LIBRARY = torch.library.Library("fork_suites", "DEF")


def operator(
    name: str,
    kernel: Callable[[Tensor], Tensor],
    fake: Callable[[Tensor], Tensor] = torch.empty_like,
    schema: str = "(Tensor x) -> Tensor",
    vmap: Callable[..., Any] | None = lambda info, dims, x: (torch.sin(x), dims[0]),
    slope: Callable[[Tensor], Tensor] = torch.cos,
) -> Any:
    """An operator like sin, whose kernel, fake, batch rule and derivative can each be wrong."""
    LIBRARY.define(name + schema)
    full = f"fork_suites::{name}"
    torch.library.impl(full, "cpu")(kernel)
    torch.library.register_fake(full)(fake)
    torch.library.register_autograd(
        full,
        lambda ctx, g: g * slope(ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    if vmap is not None:
        torch.library.register_vmap(full)(vmap)
    return getattr(torch.ops.fork_suites, name).default


class Jvp(torch.autograd.Function):
    """sin with all its formulas in Python; `fault` scales the tangent."""

    generate_vmap_rule = True
    fault = 1.0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.cos(ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return Jvp.fault * tangent * torch.cos(ctx.saved_tensors[0])


class WrongJvp(Jvp):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 1.01 * tangent * torch.cos(ctx.saved_tensors[0])


class InexactJvp(Jvp):
    """The error is larger than the rounding of float32, and smaller than that allowed to a batched product."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 1.00005 * tangent * torch.cos(ctx.saved_tensors[0])


class WrongBatch(Jvp):
    """Gives each entry of a batch the result of the first."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        first = WrongBatch.apply(x.select(in_dims[0], 0)).unsqueeze(in_dims[0])
        return first.expand_as(x), in_dims[0]


class WrongBatchInBackward(Jvp):
    """Its backward does."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * WrongBatch.apply(ctx.saved_tensors[0] + torch.pi / 2)


class WrongBatchOfGradients(Jvp):
    """Its backward does, with a batch of incoming gradients alone."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return WrongBatch.apply(grad) * torch.cos(ctx.saved_tensors[0])


class NoBatch(Jvp):
    """Its backward calls an operator that has no batch rule."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * NO_BATCH(ctx.saved_tensors[0] + torch.pi / 2)


class NoBatchInJvp(Jvp):
    """Its jvp does."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * NO_BATCH(ctx.saved_tensors[0] + torch.pi / 2)


class WritesInBackward(Jvp):
    """Its formulas write into a plain tensor, which fails if what they write is a subclass."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.zeros(grad.shape).copy_(grad * torch.cos(ctx.saved_tensors[0]))

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return torch.zeros(tangent.shape).copy_(tangent * torch.cos(ctx.saved_tensors[0]))


def writes(x: Tensor) -> Tensor:
    """sin that changes its input although its schema says that it does not."""
    result = torch.sin(x)
    x.mul_(2)
    return result


def ignores_strides(x: Tensor) -> Tensor:
    """sin of the memory, ignoring strides."""
    return torch.sin(x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset()))


def unless(condition: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """sin, or cos if the condition holds."""
    return lambda x: torch.cos(x) if condition(x) else torch.sin(x)


def in_idle_vmap(x: Tensor) -> bool:
    """Whether the innermost vmap does not batch the input."""
    return (torch._C._functorch.maybe_current_level() or 0) > max(torch._C._functorch.maybe_get_level(x), 0)


def traced(x: Tensor) -> bool:
    """Whether make_fx is at work."""
    return get_proxy_mode() is not None


GOOD = operator("good", torch.sin)
WRONG_SLOPE = operator("wrong_slope", torch.sin, slope=lambda x: 1.01 * torch.cos(x))
NO_SECOND = operator("no_second", torch.sin, slope=lambda x: torch.cos(x.detach()))
WRONG_FAKE = operator("wrong_fake", torch.sin, fake=lambda x: x.new_empty((*x.shape, 1)))
WRONG_STRIDES = operator("wrong_strides", torch.sin, fake=lambda x: x.new_empty(x.shape[::-1]).mT)
WRONG_BATCH = operator(
    "wrong_batch", torch.sin, vmap=lambda info, d, x: (torch.sin(x.select(d[0], 0).unsqueeze(d[0]).expand_as(x)), d[0])
)
NO_BATCH = operator("no_batch", torch.sin, vmap=None)
WRITES = operator("writes", writes)
ALIASES = operator("aliases", lambda x: x)
WRONG_DECOMPOSITION = operator("wrong_decomposition", torch.sin)
ROUNDING_DECOMPOSITION = operator("rounding_decomposition", torch.sin)
WRITING_DECOMPOSITION = operator("writing_decomposition", torch.sin)
CUMSUM = operator("cumsum", lambda x: x.cumsum(0), slope=torch.ones_like)


@pytest.fixture(scope="module", autouse=True)
def registrations() -> Iterator[None]:
    """Wrong decompositions, and sharding rules of which that for cumsum is wrong."""
    from torch._decomp import decomposition_table, register_decomposition
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    decompositions = {
        WRONG_DECOMPOSITION: lambda x: 1.01 * torch.sin(x),
        ROUNDING_DECOMPOSITION: lambda x: torch.sin(x) + 1 - 1,
        WRITING_DECOMPOSITION: writes,
        GOOD: lambda x: torch.sin(x),
    }
    for op, decomposition in decompositions.items():
        register_decomposition(op)(decomposition)
    for op in (GOOD, CUMSUM):
        register_sharding(op)(lambda x: [([Shard(0)], [Shard(0)]), ([Replicate()], [Replicate()])])
    yield
    for op in decompositions:
        del decomposition_table[op]


def samples(op: OpInfo, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Iterator[SampleInput]:
    for shape in ((4, 5), (3, 8)):
        yield SampleInput(make_tensor(shape, dtype=dtype, device=device, low=0.1, high=1, requires_grad=requires_grad))


def expanded(op: OpInfo, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Iterator[SampleInput]:
    """One more sample if no gradient is asked for; forward mode cannot take it."""
    yield from samples(op, device, dtype, requires_grad)
    if not requires_grad:
        yield SampleInput(make_tensor((1, 5), dtype=dtype, device=device).expand(4, 5))


def entry(fn: Callable[..., Any], name: str = "entry", **settings: Any) -> OpInfo:
    defaults: dict[str, Any] = {
        "dtypes": {torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float16, torch.bfloat16},
        "sample_inputs_func": samples,
        "supports_out": False,
        "supports_scripting": False,
    }
    return OpInfo(name, op=fn, **(defaults | settings))


def outcome(suite: type, test: str, op: OpInfo, dtype: torch.dtype | None) -> unittest.TestResult:
    """Runs one check on one OpInfo, as the device framework would on the CPU."""
    given = {"op": op, "dtype": dtype, "device": "cpu"}
    names = inspect.signature(getattr(suite, test)).parameters
    given = {key: value for key, value in given.items() if value is not None and key in names}
    case = type("Case", (CPUTestBase, suite), {"test_body": lambda self: getattr(suite, test)(self, **given)})
    result = unittest.TestResult()
    unittest.TestSuite([case("test_body")]).run(result)
    return result


@dataclass
class Fault:
    """A check, an OpInfo with a fault that it must find, and the same OpInfo without the fault."""

    suite: type
    test: str
    bad: Any
    good: Any = GOOD
    dtype: torch.dtype | None = torch.float32
    bad_settings: dict[str, Any] = field(default_factory=dict)
    good_settings: dict[str, Any] = field(default_factory=dict)
    name: str = "entry"

    def __str__(self) -> str:
        return f"{self.suite.__name__}.{self.test}"


def no_error(op: OpInfo, device: str, **_: Any) -> Iterator[ErrorInput]:
    yield ErrorInput(SampleInput(torch.ones(2)), error_regex="expected")


def an_error(op: OpInfo, device: str, **_: Any) -> Iterator[ErrorInput]:
    yield ErrorInput(SampleInput("text"), error_type=Exception, error_regex="Tensor")


def with_out(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    return torch.sin(x) if out is None else out.resize_(x.shape).zero_()


FORWARD = {"supports_forward_ad": True, "supports_fwgrad_bwgrad": True}
EXPANDED = FORWARD | {"sample_inputs_func": expanded}
SCRIPTED = {"supports_scripting": True, "assert_autodiffed": True}
ONE_DTYPE = {"dtypes": {torch.float32}}
FAULTS = [
    Fault(
        TestCommon,
        "test_numpy_ref",
        GOOD,
        dtype=torch.float64,
        bad_settings={"ref": np.cos},
        good_settings={"ref": np.sin},
    ),
    Fault(
        TestCommon,
        "test_errors",
        torch.sin,
        torch.sin,
        None,
        {"error_inputs_func": no_error},
        {"error_inputs_func": an_error},
    ),
    Fault(TestCommon, "test_noncontiguous_samples", ignores_strides, torch.sin),
    Fault(
        TestCommon,
        "test_out",
        with_out,
        torch.sin,
        bad_settings={"supports_out": True},
        good_settings={"supports_out": True},
    ),
    Fault(
        TestCommon, "test_variant_consistency_eager", torch.sin, torch.sin, bad_settings={"method_variant": Tensor.cos}
    ),
    Fault(TestCommon, "test_dtypes", GOOD, dtype=None, bad_settings=ONE_DTYPE),
    Fault(TestCompositeCompliance, "test_operator", lambda x: torch.zeros(x.shape).copy_(x), torch.sin),
    Fault(TestCompositeCompliance, "test_backward", WritesInBackward.apply, Jvp.apply),
    Fault(
        TestCompositeCompliance,
        "test_forward_ad",
        WritesInBackward.apply,
        Jvp.apply,
        bad_settings=FORWARD,
        good_settings=FORWARD,
    ),
    Fault(TestCompositeCompliance, "test_cow_input", WRITES),
    Fault(TestMathBits, "test_conj_view", unless(torch.is_conj), torch.sin, torch.complex64),
    Fault(TestMathBits, "test_neg_view", unless(torch.is_neg), torch.sin, torch.float64),
    Fault(TestMathBits, "test_neg_conj_view", unless(torch.is_neg), torch.sin, torch.complex128),
    Fault(TestFakeTensor, "test_fake", WRONG_STRIDES),
    Fault(TestFakeTensor, "test_fake", lambda x: torch.sin(x) * x.sum().item(), torch.sin),
    Fault(TestFakeTensor, "test_fake_autocast", WRONG_FAKE),
    Fault(TestFakeTensor, "test_fake_crossref_backward_no_amp", WRONG_FAKE),
    Fault(TestFakeTensor, "test_fake_crossref_backward_amp", WRONG_FAKE),
    Fault(TestBwdGradients, "test_fn_grad", WRONG_SLOPE, dtype=torch.float64),
    Fault(TestBwdGradients, "test_fn_gradgrad", NO_SECOND, dtype=torch.float64),
    Fault(
        TestFwdGradients,
        "test_forward_mode_AD",
        WrongJvp.apply,
        Jvp.apply,
        torch.float64,
        bad_settings=FORWARD,
        good_settings=FORWARD,
    ),
    Fault(
        TestFwdGradients,
        "test_fn_fwgrad_bwgrad",
        NO_SECOND,
        torch.sin,
        torch.float64,
        bad_settings=FORWARD,
        good_settings=FORWARD,
    ),
    Fault(
        TestJit,
        "test_variant_consistency_jit",
        torch.cos,
        torch.sin,
        name="sin",
        bad_settings=SCRIPTED,
        good_settings=SCRIPTED,
    ),
    Fault(TestMeta, "test_meta_outplace", WRONG_FAKE),
    Fault(TestMeta, "test_dispatch_meta_outplace", WRONG_STRIDES),
    Fault(TestMeta, "test_dispatch_symbolic_meta_outplace", WRONG_FAKE),
    Fault(TestMeta, "test_dispatch_symbolic_meta_outplace_all_strides", WRONG_STRIDES),
    Fault(TestDecomp, "test_quick", WRONG_DECOMPOSITION),
    Fault(TestDecomp, "test_comprehensive", WRONG_DECOMPOSITION),
    Fault(TestDecomp, "test_quick", ROUNDING_DECOMPOSITION, dtype=torch.float16),
    Fault(TestDecomp, "test_comprehensive", ROUNDING_DECOMPOSITION, dtype=torch.bfloat16),
    Fault(TestDecomp, "test_quick", WRITING_DECOMPOSITION),
    Fault(TestProxyTensorOpInfo, "test_make_fx_exhaustive", unless(traced), torch.sin),
    Fault(TestProxyTensorOpInfo, "test_make_fx_fake_exhaustive", unless(traced), torch.sin),
    Fault(TestProxyTensorOpInfo, "test_make_fx_symbolic_exhaustive", unless(traced), torch.sin),
    Fault(TestOperators, "test_grad", unless(torch._C._functorch.is_gradtrackingtensor), torch.sin),
    Fault(TestOperators, "test_vjp", unless(torch._C._functorch.is_gradtrackingtensor), torch.sin),
    Fault(TestOperators, "test_vjpvjp", unless(torch._C._functorch.is_gradtrackingtensor), torch.sin),
    Fault(TestOperators, "test_jvp", WrongJvp.apply, Jvp.apply, bad_settings=FORWARD, good_settings=FORWARD),
    Fault(TestOperators, "test_jvp", InexactJvp.apply, Jvp.apply, bad_settings=FORWARD, good_settings=FORWARD),
    Fault(TestOperators, "test_grad", ignores_strides, torch.sin),
    Fault(TestOperators, "test_vjp", ignores_strides, torch.sin),
    Fault(TestOperators, "test_jvp", ignores_strides, torch.sin, bad_settings=FORWARD, good_settings=FORWARD),
    Fault(TestOperators, "test_jvpvjp", NO_SECOND, torch.sin, bad_settings=FORWARD, good_settings=FORWARD),
    Fault(TestOperators, "test_vmapvjp", WrongBatchInBackward.apply, Jvp.apply),
    Fault(TestOperators, "test_vmapvjp_has_batch_rule", NoBatch.apply, Jvp.apply),
    Fault(TestOperators, "test_vmapvjpvjp", WrongBatchInBackward.apply, Jvp.apply),
    Fault(TestOperators, "test_vmapjvpall", WrongBatch.apply, Jvp.apply, bad_settings=FORWARD, good_settings=FORWARD),
    Fault(TestOperators, "test_vmapjvpall", Jvp.apply, Jvp.apply, bad_settings=EXPANDED, good_settings=FORWARD),
    Fault(
        TestOperators,
        "test_vmapjvpall_has_batch_rule",
        NoBatchInJvp.apply,
        Jvp.apply,
        bad_settings=FORWARD,
        good_settings=FORWARD,
    ),
    Fault(TestOperators, "test_vmapjvpvjp", WrongBatch.apply, torch.sin, bad_settings=FORWARD, good_settings=FORWARD),
    Fault(TestOperators, "test_vjpvmap", WrongBatch.apply, Jvp.apply),
    Fault(TestOperators, "test_vmap_autograd_grad", WrongBatchOfGradients.apply, Jvp.apply),
    Fault(TestVmapOperatorsOpInfo, "test_vmap_exhaustive", WRONG_BATCH),
    Fault(TestVmapOperatorsOpInfo, "test_vmap_exhaustive", unless(in_idle_vmap), torch.sin),
    Fault(TestVmapOperatorsOpInfo, "test_op_has_batch_rule", NO_BATCH),
    Fault(TestEagerFusionOpInfo, "test_aot_autograd_exhaustive", unless(lambda x: type(x) is not Tensor), torch.sin),
    Fault(TestEagerFusionOpInfo, "test_aot_autograd_symbolic_exhaustive", WRONG_FAKE),
    Fault(TestInductorOpInfo, "test_comprehensive", unless(lambda x: torch.compiler.is_compiling()), torch.sin),
    Fault(TestOpsUnbacked, "test_unbacked_op_db", unless(lambda x: x.shape[0] > 100), torch.sin),
    Fault(TestSchemaCheckModeOpInfo, "test_schema_correctness", WRITES),
    Fault(TestSchemaCheckModeOpInfo, "test_schema_correctness", ALIASES),
    Fault(TestOpInfo, "test_schema_check_op", WRITES),
    Fault(TestDTensorOps, "test_dtensor_op_db", CUMSUM),
    Fault(TestDTensorOps, "test_dtensor_op_db", NO_BATCH),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_caught_and_its_absence_passes(fault: Fault) -> None:
    bad = outcome(fault.suite, fault.test, entry(fault.bad, fault.name, **fault.bad_settings), fault.dtype)
    assert bad.failures or bad.errors, "the faulty operator passed"
    good = outcome(fault.suite, fault.test, entry(fault.good, fault.name, **fault.good_settings), fault.dtype)
    assert good.wasSuccessful(), "\n".join(text for _, text in good.failures + good.errors)
    assert not good.skipped, good.skipped


def test_k_chooses_operators_by_whole_test_names() -> None:
    name = "test_ops.py.TestCommonCPU.test_out_addmm_cpu_float32"
    for argv in (["-k", "addmm"], ["-kaddmm"], ["-k", "tanh", "-k", "out_addmm"], ["TestCommonCPU.test_out_addmm_cpu"]):
        selected = _selection(argv)
        assert selected is not None and selected(name), argv
    for argv in (["-k", "attn"], ["-k", "addmm*int8"]):
        selected = _selection(argv)
        assert selected is not None and not selected(name), argv
    assert _selection(["-v", "--seed", "1"]) is None


def test_pytest_expressions_choose_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTEST_EXPRESSION, "addmm and not float64")
    selected = _selection([])
    assert selected is not None
    assert selected("test_ops.py.TestCommonCPU.test_out_addmm_cpu_float32")
    assert not selected("test_ops.py.TestCommonCPU.test_out_addmm_cpu_float64")


def test_an_entry_without_samples_fails_every_test() -> None:
    def sample_inputs_none(*_: Any) -> Any:
        yield from ()

    op = OpInfo("neg", dtypes={torch.float32}, sample_inputs_func=sample_inputs_none)
    with pytest.raises(AssertionError, match="sample_inputs_none of neg yields no sample for torch.float32"):
        _with_samples(lambda *_, **__: None)(None, device="cpu", dtype=torch.float32, op=op)
    assert MAP.is_file() and advice("TestDecomp", "test_quick", "x yields no sample for y") == advice(
        "TestCommon", "test_numpy_ref"
    )


def test_no_known_failure_is_of_the_stack() -> None:
    assert not [known for known in KNOWN if "attn" in known.op]
    assert "attn" not in UNBACKED


def test_a_checkout_runs_its_own_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_upstream(tmp_path, []) == 2
    assert "no test files of PyTorch there" in capfd.readouterr().err
    (tmp_path / "test" / "functorch").mkdir(parents=True)
    (tmp_path / "test" / "test_ops.py").write_text("import sys; print(sys.argv[1:]); sys.exit(0)")
    (tmp_path / "test" / "functorch" / "test_vmap.py").write_text("import sys; sys.exit(1)")
    assert run_upstream(tmp_path, ["-k", "attn"]) == 1
    printed = capfd.readouterr().out
    assert "['-k', 'attn']" in printed
    assert "1 of 2 files passed" in printed and "failed: functorch/test_vmap.py" in printed


def test_a_failure_names_the_row_of_the_guides_map() -> None:
    def fails(self: Any) -> None:
        raise RuntimeError("no batch rule")

    for suite, row in (("TestDTensorOps", "distributed tensors"), ("TestInductorOpInfo", "Inductor")):
        with pytest.raises(RuntimeError) as caught:
            with_advice(fails, suite)(None)
        if sys.version_info >= (3, 11):
            assert f"the row '{row}' of the map in {MAP}" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError) as caught:
        with_advice(fails, "TestTags")(None)
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    ("suite", "said", "row"),
    [
        ("TestInductorOpInfo", "cannot trace the builtin `torch._VariableFunctionsClass.logcosh.`", "TorchDynamo"),
        ("TestOpsUnbacked", "cannot trace the builtin `torch._VariableFunctionsClass.logcosh.`", "TorchDynamo"),
        ("TestOpsUnbacked", "Could not guard on data-dependent expression Eq(u0, u1)", "the checks"),
        ("TestFwdGradients", "NotImplementedError not raised", "an OpInfo"),
        ("TestFwdGradients", "Trying to use forward AD with logcosh that does not support it", "forward mode"),
        ("TestOperators", "aten::logcosh hit the vmap fallback which is currently disabled", "batch rules"),
        ("TestTags", "anything", None),
    ],
)
def test_the_reason_of_a_failure_chooses_the_row(suite: str, said: str, row: str | None) -> None:
    sentence = advice(suite, "test_any", said)
    assert (row is None and sentence is None) or f"the row '{row}' of the map" in str(sentence)


def test_tolerances_are_those_of_the_stack_that_the_fork_was_built_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fragment of a branch has lines around the table that do not run alone, and entries of other releases."""
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch/__init__.py"))
    assert tolerances() == {}
    (tmp_path / "test").mkdir()
    (tmp_path / "test/test_decomp.py").write_text(
        "from nowhere import nothing\n\ndef op_assert_ref(test_case, op):\n    tol_table = {\n"
        "        (torch.float16, torch.ops.aten.no_such_operator.default): 1.0,\n"
        "        (torch.float16, torch.ops.aten.mv.default): 2e-3,\n    }\n    nothing(tol_table, {'a': op})\n"
    )
    assert tolerances() == {(torch.float16, torch.ops.aten.mv.default): 2e-3}
