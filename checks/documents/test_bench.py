"""The benchmark of the CPU: how results are kept and shown, and that the documents show what the files hold."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

import pytest
import torch

from bench import documents, report
from bench.attn.cpu import __main__ as bench
from bench.attn.cpu import record as records
from bench.attn.cpu import tables
from bench.attn.cpu.cases import Case, grid
from bench.attn.cpu.kinds import CAST
from bench.attn.cpu.processes import Worker
from bench.attn.cpu.record import FOLDER, Record, Result, here
from bench.attn.cpu.routes import as_heads, batched, works
from bench.attn.reference import composition
from bench.machine import ROOT

FORWARD = Case("grid", "forward", "float32", 16, 16, 16)
CAPABILITY = here().capability


def result(case: Case = FORWARD, speedup: float = 2.0, generic: float = 1.5, kernels: str = "") -> Result:
    seconds = {"composition": 1e-3 * speedup, "torch.attn": 1e-3, "generic": 1e-3 * generic}
    kernels = kernels or records.kernels("cpu", CAPABILITY)
    return Result(case, seconds, commit="abc1234", torch="2.13.0", kernels=kernels)


class Inside:
    """A worker without a process, so that the tests need no fork."""

    def __init__(self, environment):
        self.worker = Worker()

    def run(self, method, *arguments):
        return method(self.worker, *arguments)


def measure(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Runs `python -m bench.attn.cpu` with composition in the place of torch.attn."""
    monkeypatch.setattr(torch, "attn", composition, raising=False)
    monkeypatch.setattr(bench, "Process", Inside)
    monkeypatch.setattr(sys, "argv", ["bench.attn.cpu", "--seconds", "0.01", *words])
    bench.main()


SLICE = ("--part", "grid", "--dtype", "float32", "--n", "16", "--d", "16")


def test_a_slice_is_measured_and_merged_into_what_is_there(tmp_path, monkeypatch, capsys):
    record = here()
    other = result(dataclasses.replace(FORWARD, n=64))
    gone = result(dataclasses.replace(FORWARD, n=256), kernels="others")
    for each in (other, gone, result()):
        record.add(each)
    record.write(tmp_path)
    measure(monkeypatch, *SLICE, "--out", str(tmp_path))
    kept = Record.read(tmp_path)
    found = {(r.case.kind, r.case.n) for r in kept.results}
    assert {("backward", 16), ("forward", 16), ("forward", 64), ("grad_v", 16)} <= found and (
        "forward",
        256,
    ) not in found
    assert kept.find(other.case) == other
    new = kept.find(FORWARD)
    assert new and new.commit != "abc1234" and new.torch == torch.__version__
    assert set(new.seconds) == {"composition", "torch.attn", "generic"} and min(new.seconds.values()) > 0
    assert (tmp_path / "tables.md").read_text() == tables.document(kept)
    assert (tmp_path / "speedup.svg").read_text().count(">Speed-up over composition, D = E = 64<") == 1
    assert "with them, slower (below 0.97) than composition in " in capsys.readouterr().out.splitlines()[-1]


def prepared(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The columns of each process that prepares a case from now on."""
    ran: list[set[str]] = []
    prepare = Worker.prepare

    def preparing(worker: Worker, *arguments: Any) -> None:
        prepare(worker, *arguments)
        ran.append(set(worker.found))

    monkeypatch.setattr(Worker, "prepare", preparing)
    return ran


def test_what_is_compared_runs_beside_the_same_routes(tmp_path, monkeypatch):
    """What others leave of malloc's heap counts against none of the columns."""
    ran = prepared(monkeypatch)
    measure(monkeypatch, "--part", "batches", "--n", "16", "--d", "32", "--out", str(tmp_path))
    compared = [{"composition", "torch.attn", "vmap"}, {"", "generic"}]
    with_pages = [{"composition" + records.PAGES, "torch.attn" + records.PAGES}, {"", "generic" + records.PAGES}]
    assert ran == [*compared, *with_pages, {"", "loop", "SDPA"}] * 4


def test_sdpa_of_heads_runs_beside_torch_attn_alone(tmp_path, monkeypatch):
    """SDPA keeps no attn, so composition in between would cost torch.attn alone."""
    ran = prepared(monkeypatch)
    measure(monkeypatch, "--part", "heads", "--n", "77", "--dtype", "float32", "--out", str(tmp_path))
    assert ran == [{"composition", "torch.attn"}, {"", "generic"}, {records.BESIDE, "SDPA"}] * 2
    found = Record.read(tmp_path).results[0]
    assert found.speedup("SDPA") == found.seconds["SDPA"] / found.seconds[records.BESIDE]


def test_heads_lie_as_models_hold_them():
    """Few of k and v serve all queries, without a copy, and gradients end as a layer needs them."""
    case = Case("heads", "backward", "float32", 6, 4, 4, m=5, batch=2, heads=4, shared=2)
    seen: list[Any] = []

    def attn(*operands):
        seen.extend((x.shape, x.stride()) for x in operands)
        return composition(*operands)

    gradients: Any = works(attn, case)()
    k_and_v = ((2, 2, 2, 6, 4), (48, 4, 0, 8, 1))
    assert seen == [((2, 2, 2, 5, 4), (80, 8, 4, 16, 1)), k_and_v, k_and_v]
    assert [grad.shape for grad in gradients] == [(2, 5, 4, 4), (2, 6, 2, 4), (2, 6, 2, 4)]
    assert all(grad.is_contiguous() for grad in gradients)
    leaves = torch.ones(2, 5, 4, 4), torch.ones(2, 6, 2, 4), torch.ones(2, 6, 2, 4)
    assert batched()["SDPA"](*as_heads(*leaves, 2))[0].shape == (2, 4, 5, 4)


def test_results_of_another_processor_stay(tmp_path, monkeypatch):
    foreign = Record("Another Processor", 2, "AVX2", results=[result()])
    foreign.write(tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(
        SystemExit, match="was taken on Another Processor, 2 threads, capability AVX2, and this is .*--out"
    ):
        measure(monkeypatch, "--n", "16", "--out", str(tmp_path))
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_single_gradient_is_the_only_one_that_is_computed():
    expected = {"grad_q": [(3, 4)], "grad_k": [(3, 4)], "grad_v": [(3, 5)], "backward": [(3, 4), (3, 4), (3, 5)]}
    for kind, sizes in expected.items():
        gradients: Any = works(composition, Case("grid", kind, "float32", 3, 4, 5))()
        assert [tuple(grad.shape) for grad in gradients] == sizes


@pytest.mark.parametrize("speedup, kept, status", [(1.0, 5, False), (0.96, 5, True), (1.0, 4, True)])
def test_the_check_fails_where_a_case_is_slower_or_missing(tmp_path, monkeypatch, capsys, speedup, kept, status):
    record = here()
    cases = [case for case in grid() if case.dtype == "float32" and (case.n, case.d) == (16, 16)]
    record.results = [result(case, speedup if case == FORWARD else 1.0) for case in cases[:kept]]
    record.write(tmp_path)
    with pytest.raises(SystemExit) as ended:
        measure(monkeypatch, *SLICE, "--check", "--out", str(tmp_path))
    said = capsys.readouterr().out
    assert bool(ended.value.code) == status and len(cases) == 5
    assert ("forward float32 N=16 D=16 (0.96)" in said) == (speedup < 0.97)
    assert ("not measured with the present kernels: 1 of 5 cases" in said) == (kept < 5)


def test_tables_are_those_of_the_results():
    for record in report.everywhere():
        folder = FOLDER / record.folder_name
        assert (folder / "tables.md").read_text() == tables.document(record), "run `python -m bench.report`"


@pytest.mark.parametrize("path", report.DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_show_the_results(path):
    assert report.filled(path, report.values()) == path.read_text(), "run `python -m bench.report`"


# A speed, a time, a rate, a share, or a count of tests that passed
FIGURE = re.compile(
    r"\b\d[\d.,]*(?: times\b|x\b| ?(?:ms|s|GFLOP/s|TFLOP/s|GB/s|GiB|MiB)\b| ?%| (?:milli|micro)?seconds\b| passed)"
)
WRITTEN = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "fork/README.md", "fork/CHANGELOG.md")
]


@pytest.mark.parametrize(
    "path", [*WRITTEN, *sorted(ROOT.glob("stack/*/*.md"))], ids=lambda path: str(path.relative_to(ROOT))
)
def test_prose_has_no_figures_of_its_own(path):
    """They would be those of former kernels one day; the README's example of an output is no measurement."""
    text = documents.outside_markers(path.read_text())
    if path.name == "README.md":
        text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not FIGURE.findall(text), "let `python -m bench.report` fill it in: see bench/documents.py"


def test_results_of_other_kernels_are_not_shown():
    old, new = result(speedup=3.0, kernels="others"), result(dataclasses.replace(FORWARD, n=64), speedup=5.0)
    record = Record("A", 2, CAPABILITY, "Of old.", results=[old, new])
    assert record.present() == dataclasses.replace(record, results=[new])
    assert dataclasses.replace(record, results=[old]).present().remark == ""
    assert "These are figures of earlier kernels" in tables.document(dataclasses.replace(record, results=[old]))


def test_a_row_of_16_bits_has_the_faster_of_its_rivals():
    measured = result(Case("heads", "forward", "bfloat16", 512, batch=2, heads=8), 30.0)
    for seconds, shown in ((4e-3, "4, in float32 | 9 | 4.0x"), (60e-3, "30 | 9 | 30x")):
        measured.seconds.update({CAST: seconds, "SDPA": 9e-3})
        rows = report.speed([Record("A", 2, "AVX2", results=[measured])]).splitlines()
        assert rows[2] == f"| bfloat16 | 2 x 8 x 512 x 512 | heads | {shown} |"


def test_comments_do_not_change_the_kernels(tmp_path, monkeypatch):
    native = tmp_path / "aten/src/ATen/native"
    for folder in ("cpu", "cuda"):
        (native / folder).mkdir(parents=True)
        (native / folder / "Kernel.h").write_text("int a; // one\n")
    (native / "OpCPU.cpp").write_text("int b;\n")
    monkeypatch.setattr(records, "ROOT", tmp_path)

    def digests():
        return [records.kernels.__wrapped__(device) for device in ("cpu", "cuda")]

    before = digests()
    (native / "cpu/Kernel.h").write_text("/* two */ int a;\n")
    assert digests() == before
    (native / "OpCPU.cpp").write_text("int c;\n")
    assert digests()[0] != before[0] and digests()[1] == before[1]
