"""The benchmark of the CPU: how results are kept and shown, and that the documents show what the files hold."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time

import pytest
import torch

from bench import documents
from bench.cpu import __main__ as bench
from bench.cpu import record as records
from bench.cpu import report
from bench.cpu.cases import DTYPES, SIZES, WIDTHS, Case, grid, is_quick, other_routes
from bench.cpu.record import FOLDER, Record, Result, here
from bench.reference import composition
from fork.errors import ForkError

FORWARD = Case("grid", "forward", "float32", 16, 16, 16)


def result(case: Case = FORWARD, speedup: float = 2.0, commit: str = "abc1234") -> Result:
    return Result(case, {"composition": 1e-3 * speedup, "torch.attn": 1e-3}, commit=commit, torch="2.13.0")


def measure(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Runs `python -m bench.cpu` with composition in the place of torch.attn, so that no fork is needed."""
    monkeypatch.setattr(torch, "attn", composition, raising=False)
    monkeypatch.setattr(sys, "argv", ["bench.cpu", *words])
    bench.main()


def test_a_slice_is_measured_and_merged_into_what_is_there(tmp_path, monkeypatch, capsys):
    record = here()
    other = result(dataclasses.replace(FORWARD, n=64), commit="earlier")
    record.add(other)
    record.add(result(commit="earlier"))
    record.write(tmp_path)
    measure(monkeypatch, "--part", "grid", "--dtype", "float32", "--n", "16", "--d", "16", "--out", str(tmp_path))
    kept = Record.read(tmp_path)
    assert [(r.case.kind, r.case.n) for r in kept.results] == [("backward", 16), ("forward", 16), ("forward", 64)]
    assert kept.find(other.case) == other
    new = kept.find(FORWARD)
    assert new and new.commit != "earlier" and new.torch == torch.__version__ and new.seconds["torch.attn"] > 0
    assert (tmp_path / "tables.md").read_text() == report.document(kept)
    assert all((tmp_path / f"{chart}.svg").stat().st_size > 1000 for chart in ("speedup", "roofline", "memory"))
    assert "slower than composition (below 0.97), of 2 cases: " in capsys.readouterr().out.splitlines()[-1]


def test_results_of_another_processor_stay(tmp_path, monkeypatch):
    foreign = Record("Another Processor", 2, "AVX2", results=[result()])
    foreign.write(tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(
        SystemExit, match="was taken on Another Processor, 2 threads, capability AVX2, and this is .*--out"
    ):
        measure(monkeypatch, "--n", "16", "--out", str(tmp_path))
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_case_that_would_take_too_long_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "expected", lambda case, attns: 99.0 if case.kind == "backward" else 0.0)
    measure(monkeypatch, "--part", "grid", "--dtype", "float16", "--n", "16", "--d", "16", "--out", str(tmp_path))
    assert [r.case.kind for r in Record.read(tmp_path).results] == ["forward"]
    assert "   16   16   16 left out: about 99 s a call" in capsys.readouterr().out


def test_the_time_of_a_large_call_is_guessed_from_a_smaller_one():
    sizes = []

    def slow(q, k, v):
        sizes.append(len(q))
        time.sleep(0.05)
        return composition(q, k, v)

    guess = bench.expected(dataclasses.replace(FORWARD, n=4096), {"torch.attn": slow})
    assert set(sizes) == {1024} and guess >= 16 * 0.05
    assert bench.expected(FORWARD, {"torch.attn": slow}) == 0


def test_a_part_that_has_no_case_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ForkError, match="no case has this part, dtype, N and D"):
        measure(monkeypatch, "--n", "3", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_huge_pages_are_refused_to_a_process_of_their_own():
    if not sys.platform.startswith("linux"):
        pytest.skip("prctl is Linux's")
    program = "from bench.cpu.__main__ import refuse_huge_pages as f; f(); print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "THP_enabled:\t0" in done.stdout


def test_results_without_huge_pages_lie_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "refuse_huge_pages", lambda: None)
    words = ("--part", "grid", "--dtype", "float32", "--n", "2", "--d", "16", "--out", str(tmp_path))
    measure(monkeypatch, "--no-huge-pages", *words)
    assert [path.name for path in tmp_path.iterdir()] == [report.WITHOUT_PAGES]
    (without,) = {r.case for r in Record.read(tmp_path / report.WITHOUT_PAGES).results if r.case.kind == "forward"}
    assert (without.n, without.d) == (2, 16)


def test_a_run_goes_on_where_the_time_was_up(tmp_path, monkeypatch, capsys):
    words = ("--part", "grid", "--dtype", "float32", "--n", "2", "16", "--d", "16", "--out", str(tmp_path))
    measure(monkeypatch, *words, "--minutes", "1e-9")
    assert "the time is up: 4 cases are left" in capsys.readouterr().out
    measure(monkeypatch, *words[:5], *words[6:], "--missing")  # N = 16 alone
    assert {r.case.n for r in Record.read(tmp_path).results} == {16}
    timed = {r.case: r.seconds for r in Record.read(tmp_path).results}
    measure(monkeypatch, *words, "--missing")
    kept = Record.read(tmp_path)
    assert len(kept.results) == 4 and timed.items() <= {r.case: r.seconds for r in kept.results}.items()


def test_the_verdict_names_every_slower_case_and_no_other():
    slow = result(dataclasses.replace(FORWARD, kind="backward"), speedup=0.96)
    elsewhere = result(dataclasses.replace(FORWARD, part="routes"), speedup=0.5)
    assert report.verdict([result(), slow, elsewhere, result(speedup=0.98)]) == (
        "slower than composition (below 0.97), of 3 cases: backward float32 N=16 D=16 (0.96)"
    )
    assert report.verdict([result()]).endswith("of 1 cases: none")


def test_the_grid_is_whole_and_quick_takes_a_part_of_it():
    cases = list(grid())
    assert len(set(cases)) == len(cases) == len(SIZES) * len(WIDTHS) * len(DTYPES) * 2
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
    old, new = result(speedup=3.0), result(dataclasses.replace(FORWARD, n=64), speedup=5.0)
    record = Record("A", 2, "AVX2", results=[old, dataclasses.replace(new, kernels=records.kernels("cpu"))])
    assert record.present().results == record.results[1:]
    monkeypatch.setattr(report, "everywhere", lambda: [dataclasses.replace(record, results=[old])])
    of_processors = {name: value for name, value in report.values().items() if name not in ("gpu", "check")}
    assert set(of_processors.values()) == {report.UNMEASURED, report.UNMEASURED + "\n"}
    assert "those of the commits abc1234" in report.document(dataclasses.replace(record, results=[old]))


def test_the_headline_says_what_the_results_do():
    kinds = [
        result(Case("grid", kind, "float32", 4096), speedup) for kind, speedup in (("forward", 2.5), ("backward", 3.25))
    ]
    said = report.headline([Record("A", 2, "AVX2", results=kinds), Record("B", 2, "AVX2")])
    assert "forward and backward are 2.5 and 3.2 times as fast on A as composition: `make bench ARGS='" in said
    assert "on B" not in said


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
