"""The benchmark of the CPU: how results are kept and shown, and that the documents show what the files hold."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import documents
from bench.cpu import __main__ as bench
from bench.cpu import record as records
from bench.cpu import report
from bench.cpu.cases import DTYPES, Case, batches, grid, is_quick, other_routes
from bench.cpu.processes import PLAIN, SWITCH, Process, Worker
from bench.cpu.record import FOLDER, PAGES, Record, Result, here
from bench.cpu.routes import works
from bench.cpu.rule import fused, present
from bench.reference import composition
from fork.errors import ForkError

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
    """Runs `python -m bench.cpu` with composition in the place of torch.attn."""
    monkeypatch.setattr(torch, "attn", composition, raising=False)
    monkeypatch.setattr(bench, "Process", Inside)
    monkeypatch.setattr(sys, "argv", ["bench.cpu", "--seconds", "0.01", *words])
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
    assert (tmp_path / "tables.md").read_text() == report.document(kept)
    assert all((tmp_path / f"{chart}.svg").stat().st_size > 1000 for chart in ("speedup", "roofline", "memory"))
    assert "with them, slower (below 0.97) than composition in " in capsys.readouterr().out.splitlines()[-1]


def test_large_cases_have_both_settings_and_their_memory(tmp_path, monkeypatch):
    measure(monkeypatch, *SLICE[:5], "1024", "--d", "16", "--out", str(tmp_path))
    found = Record.read(tmp_path).find(dataclasses.replace(FORWARD, n=1024))
    assert found and found.speedup(pages=PAGES) and found.speedup("generic", PAGES)
    assert set(found.memory) == {"composition", "generic", "torch.attn"} and found.floor


def test_results_of_another_processor_stay(tmp_path, monkeypatch):
    foreign = Record("Another Processor", 2, "AVX2", results=[result()])
    foreign.write(tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(
        SystemExit, match="was taken on Another Processor, 2 threads, capability AVX2, and this is .*--out"
    ):
        measure(monkeypatch, "--n", "16", "--out", str(tmp_path))
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_part_that_has_no_case_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ForkError, match="no case has this part, dtype, N and D"):
        measure(monkeypatch, "--n", "3", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_case_has_its_own_number_of_threads(monkeypatch):
    monkeypatch.setattr(torch, "attn", composition, raising=False)
    worker = Worker()
    for threads in (1, 0):
        worker.prepare(dataclasses.replace(FORWARD, threads=threads), {"composition": "composition"}, False)
        assert torch.get_num_threads() == (threads or worker.threads) and set(worker.turn(1e-3)) == {"composition"}


def test_a_single_gradient_is_the_only_one_that_is_computed():
    expected = {"grad_q": [(3, 4)], "grad_k": [(3, 4)], "grad_v": [(3, 5)], "backward": [(3, 4), (3, 4), (3, 5)]}
    for kind, sizes in expected.items():
        gradients: Any = works(composition, kind, (3, 3), 4, 5, torch.float32)()
        assert [tuple(grad.shape) for grad in gradients] == sizes


class Pages:
    """Called with a worker: the bytes of 64 MiB of PyTorch's that lie in huge pages."""

    @staticmethod
    def huge(worker):
        kept = torch.ones(2**24)
        with open("/proc/self/smaps_rollup") as file:
            found = next(int(line.split()[1]) * 1024 for line in file if line.startswith("AnonHugePages"))
        return found if len(kept) else 0


def test_the_switch_for_huge_pages_reaches_the_allocator():
    policy = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not policy.exists() or "[madvise]" not in policy.read_text():
        pytest.skip("this system gives huge pages to everybody or to nobody")
    without, switched = (Process(environment).run(Pages.huge) for environment in (PLAIN, SWITCH))
    assert without == 0 and switched >= 32 << 20


def test_a_run_goes_on_where_the_time_was_up(tmp_path, monkeypatch, capsys):
    words = (*SLICE[:5], "16", "256", *SLICE[6:], "--out", str(tmp_path))
    measure(monkeypatch, *words, "--minutes", "1e-9")
    assert "the time is up: 7 cases are left" in capsys.readouterr().out
    measure(monkeypatch, *SLICE, "--out", str(tmp_path), "--missing")
    assert {r.case.n for r in Record.read(tmp_path).results} == {16}
    timed = {r.case: r.seconds for r in Record.read(tmp_path).results}
    measure(monkeypatch, *words, "--missing")
    kept = Record.read(tmp_path)
    assert len(kept.results) == 7 and timed.items() <= {r.case: r.seconds for r in kept.results}.items()


def test_the_verdict_names_every_slower_case_and_no_other():
    slow = result(dataclasses.replace(FORWARD, kind="grad_v", e=1), speedup=0.96, generic=0.98)
    elsewhere = result(dataclasses.replace(FORWARD, part="routes"), speedup=0.5)
    paged = result(dataclasses.replace(FORWARD, threads=1))
    paged.seconds.update({"generic" + PAGES: 0.5e-3, "torch.attn" + PAGES: 1e-3, "composition" + PAGES: 1e-3})
    missing = dataclasses.replace(FORWARD, dtype="float64")
    record = Record("A Processor", 2, "AVX2", results=[slow, elsewhere, paged, result(speedup=0.98)])
    assert report.verdicts(record, [*(r.case for r in record.results if r is not elsewhere), missing]) == (
        "3 of 4 (float32 3 of 3, float64 0 of 1) cases measured, the kernels run in 2; "
        "with them, slower (below 0.97) than composition in none of 3; "
        "with them, slower (below 0.97) than generic in 1 of 3: "
        "forward float32 N=16 D=16 1 thread, huge pages (0.50); "
        "composed, slower than composition in 1 of 1: grad_v float32 N=16 D=16 E=1 (0.96); "
        "where no kernel runs, the same code in two processes differs by 0.98 to 0.98, "
        "in 0 of 1 pairs by more than 0.97 to 1.03"
    )
    assert report.verdicts(Record("A Processor", 2, "AVX2")) == "no case of the grid was measured"


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


def test_the_grid_is_whole_and_quick_takes_a_part_of_it():
    cases = [*grid(), *batches()]
    assert len(set(cases)) == len(cases)
    assert {case.dtype for case in grid()} == set(DTYPES) and {case.threads for case in cases} == {0, 1}
    sizes = {(case.n, case.d, case.e) for case in grid()}
    assert {(256, 1024, 16), (1024, 1, 64), (37, 5, 9), (4096, 64, 64)} <= sizes
    assert {(96, 128, 128), (2, 4096, 4096), (32, 1, 4096)} <= {case.shape for case in batches()}
    quick = [case for case in (*cases, *other_routes()) if is_quick(case)]
    assert {case.dtype for case in quick} == set(DTYPES) and len(quick) < 45


def test_tables_are_those_of_the_results():
    records = report.everywhere()
    assert records
    for record in records:
        assert (FOLDER / record.folder_name / "tables.md").read_text() == report.document(record), (
            "run `python -m bench.cpu.report`"
        )


@pytest.mark.parametrize("path", report.DOCUMENTS, ids=lambda path: str(path.relative_to(report.ROOT)))
def test_documents_show_the_results(path):
    assert report.filled(path, report.values()) == path.read_text(), "run `python -m bench.cpu.report`"


# A speed, a time, a rate, a share, or a count of tests that passed
FIGURE = re.compile(
    r"\b\d[\d.,]*(?: times\b|x\b| ?(?:ms|s|GFLOP/s|TFLOP/s|GB/s|GiB|MiB)\b| ?%| (?:milli|micro)?seconds\b| passed)"
)
WRITTEN = [report.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


@pytest.mark.parametrize(
    "path", [*WRITTEN, *sorted(report.ROOT.glob("stack/*/*.md"))], ids=lambda path: str(path.relative_to(report.ROOT))
)
def test_prose_has_no_figures_of_its_own(path):
    """They would be those of former kernels one day; the README's example of an output is no measurement."""
    text = documents.outside_markers(path.read_text())
    if path.name == "README.md":
        text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not FIGURE.findall(text), "let `python -m bench.cpu.report` fill it in: see bench/documents.py"


@pytest.mark.parametrize(
    "line", ["3.5 and 2.8 times as fast", "350 passed", "it takes 41 s", "10.8 ms", "5.1x", "97.6 %"]
)
def test_a_figure_in_prose_is_seen(line):
    assert FIGURE.search(line) and not FIGURE.search("2.13.0, N = 4096, 5 GB, at D = E = 64 in 2 threads")


def test_results_of_other_kernels_are_not_shown(monkeypatch):
    old, new = result(speedup=3.0, kernels="others"), result(dataclasses.replace(FORWARD, n=64), speedup=5.0)
    record = Record("A", 2, CAPABILITY, "Of old.", results=[old, new])
    assert present(record) == dataclasses.replace(record, results=[new])
    assert present(dataclasses.replace(record, results=[old])).remark == ""
    monkeypatch.setattr(report, "everywhere", lambda: [dataclasses.replace(record, results=[old])])
    shown = {report.values()[name].strip() for name in ("headline", "speed", "slower", "memory", "charts")}
    assert shown == {report.UNMEASURED}
    assert "These are figures of earlier kernels" in report.document(dataclasses.replace(record, results=[old]))


def test_results_of_another_rule_are_not_shown():
    known = Record("A", 2, CAPABILITY)
    (runs,) = fused(known, [FORWARD])
    same, other = (dataclasses.replace(result(), fused=said) for said in (runs, not runs))
    assert present(dataclasses.replace(known, results=[same])).results == [same]
    assert present(dataclasses.replace(known, results=[other])).results == []


def test_the_headline_says_what_the_results_do():
    kinds = [
        dataclasses.replace(result(Case("grid", kind, "float32", 4096), speedup), fused=kind != "forward")
        for kind, speedup in (("forward", 2.5), ("backward", 3.25))
    ]
    for each in kinds:
        each.seconds.update({"composition" + PAGES: 3e-3, "torch.attn" + PAGES: 2e-3})
    said = report.headline([Record("A", 2, "AVX2", results=kinds), Record("B", 2, "AVX2")])
    assert "are 2.5 and 3.2 times as fast as composition on A, where forward runs no kernel, and 1.5 and" in said
    assert "`make bench ARGS='--dtype float32 --n 4096 " in said and "on B" not in said


def test_a_row_has_both_kinds_and_says_what_is_composed():
    pair = [
        dataclasses.replace(result(Case("batches", kind, "float32", 512, batch=8), gain), fused=kind == "forward")
        for kind, gain in (("forward", 2.5), ("backward", 0.5))
    ]
    rows = report.speed([Record("A", 2, "AVX2", results=pair)]).splitlines()
    assert rows[2] == "| float32 | 8 x 512 x 512 | 2.5 | 1 | 2.5x | 0.5 | 1 | **0.50x**, composed |"
    assert len(rows) == 5 and rows[4].startswith("* A, 2 threads, capability AVX2")


def test_comments_do_not_change_the_kernels(tmp_path, monkeypatch):
    native = tmp_path / "aten/src/ATen/native"
    for folder in ("cpu", "cuda"):
        (native / folder).mkdir(parents=True)
        (native / folder / "Kernel.h").write_text("int a; // one\n")
    (native / "OpCPU.cpp").write_text("int b;\n")
    monkeypatch.setattr(records, "FOLDER", tmp_path / "guide/bench")

    def digests():
        return [records.kernels.__wrapped__(device) for device in ("cpu", "cuda")]

    before = digests()
    (native / "cpu/Kernel.h").write_text("/* two */ int a;\n")
    assert digests() == before
    (native / "OpCPU.cpp").write_text("int c;\n")
    assert digests()[0] != before[0] and digests()[1] == before[1]
    before = digests()
    (native / "cpu/AttnRule.h").write_text("inline bool attn_is_fused();\n")
    assert digests() == before
    (native / "cpu/Other.h").write_text("inline bool attn_is_fused();\n")
    assert digests()[0] != before[0]


def test_code_of_avx512_changes_its_own_kernels_alone(tmp_path, monkeypatch):
    file = tmp_path / "aten/src/ATen/native/cpu/Kernel.h"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(records, "FOLDER", tmp_path / "guide/bench")

    def digests(special, other):
        file.write_text(f"#if defined(CPU_CAPABILITY_AVX512) && A\n{special}\n#else\n{other}\n#endif\nint c;\n")
        return [records.kernels.__wrapped__("cpu", capability) for capability in ("AVX512", "AVX2")]

    before, changed = digests("int a;", "int b;"), digests("int d;", "int b;")
    assert changed[0] != before[0] and changed[1] == before[1]
    assert digests("int a;", "int d;")[1] != before[1]


def test_only_what_can_change_a_measurement_makes_a_commit_dirty(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path / "guide/bench")
    assert records.commit() == "unknown"
    for path in ("guide/bench/results.json", "README.md", "Makefile"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    clean = records.commit()
    (tmp_path / "guide/bench/results.json").write_text("2\n")
    (tmp_path / "README.md").write_text("2\n")
    assert records.commit() == clean and len(clean) == 7
    (tmp_path / "Makefile").write_text("2\n")
    assert records.commit() == f"{clean}-dirty"
