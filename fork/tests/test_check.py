"""`fork check`: a sound stack passes, and each way of being unsound has its sentence."""

import dataclasses
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import MonkeyPatch

from fork.commands import check
from fork.engine.build import Build
from fork.engine.wheel import base as bases
from fork.series import Commit, Series
from fork.tests import softclip
from fork.tests.helpers import Tool, write
from fork.tests.tiny import NATIVE, SERIES, STACK, UPSTREAM, stack
from fork.verify import operator_map, soundness
from fork.verify.prefix import Result, Run


def faults(root: Path) -> str:
    """What the checks that build nothing say, on the tiny upstream."""
    series = Series.load(root)
    docs = UPSTREAM["docs/source/ops.rst"].replace("Operators\n~~~~~~~~~", "# Operators")
    base = UPSTREAM | {"docs/source/ops.md": docs}
    found = [
        *soundness.files(series),
        *soundness.descriptions(series),
        *soundness.weaves(series, base.get, lambda path: None),
        *soundness.marked(series, soundness.UNFINISHED),
    ]
    return "\n".join(found) + "\n"


def test_a_sound_stack_has_no_faults(tmp_path: Path) -> None:
    assert faults(stack(tmp_path)) == "\n"


def test_files_that_no_state_needs(tmp_path: Path) -> None:
    root = stack(tmp_path)
    stored = {NATIVE: STACK[NATIVE], "unknown.txt": "x\n", "torch/overrides.py": "names = ['early']\n"}
    write(root / "stack/plain", stored)
    write(root / "stack/fast", {"aten/src/ATen/native/Twice.cpp": "// hides the tip"})
    write(root, {"docs/source/ops.md": "# Operators\n\n    x", "torch/overrides.py": "names = [\n"})
    write(root, {"torch/new.py": "", "test/test_ops.py": ""})
    write(root, {"stack/series.yaml": f"{SERIES}  elsewhere.py:\n    file: last\n"})
    assert_expected_inline(
        faults(root),
        """\
elsewhere.py: it has an anchor, and no PR introduces it
torch/new.py: no PR introduces it
stack/fast/aten/src/ATen/native/Twice.cpp: hides aten/src/ATen/native/Twice.cpp, the last state
stack/plain/aten/src/ATen/native/native_functions.yaml: the same as the next state: delete it
stack/plain/torch/overrides.py: this state does not have torch/overrides.py
stack/plain/unknown.txt: this state does not have unknown.txt
docs/source/ops.md: no newline at its end
stack/fast/aten/src/ATen/native/Twice.cpp: no newline at its end
torch/overrides.py: '[' was never closed (<unknown>, line 1)
torch/overrides.py: line 1 of the fragment does not parse here: '[' was never closed
""",
    )


def test_descriptions_that_are_not_complete(tmp_path: Path) -> None:
    root = stack(tmp_path)
    (root / "stack/plain/PR.md").unlink()
    left = "TODO: who needs it. The second sentence goes\non."
    write(root, {"stack/fast/PR.md": f"Another title\n\n## Why\n\n{left}\n\n---\n\nThe rest.\n"})
    assert_expected_inline(
        faults(root),
        """\
stack/plain/PR.md: missing
stack/fast/PR.md: it does not begin with 'Make twice fast' and an empty line
stack/fast/PR.md:8: git would cut the message at '---'
stack/fast/PR.md: it has no section 'how to review'
stack/fast/PR.md: it has no section 'test plan'
stack/fast/PR.md: it does not say 'Stack (oldest at bottom):' and then * **fast** (this PR), * plain
stack/fast/PR.md:5: who needs it
""",
    )


def test_anchors_that_do_not_fit(tmp_path: Path) -> None:
    series = SERIES.replace("names: after one", "names: after five").replace('"Two.cpp"', '"Six.cpp"')
    write(stack(tmp_path), {"stack/series.yaml": f"{series}    others: last\n"})
    assert_expected_inline(
        faults(tmp_path),
        """\
build_variables.bzl: anchor 'before "Six.cpp",' in 'native' found 0 times (did you mean '"Two.cpp",'?)
torch/overrides.py: anchor 'after five' in 'names' found 0 times
torch/overrides.py: no fragment uses the anchor 'others'
""",
    )


def test_the_map_names_what_an_operator_lacks(tmp_path: Path) -> None:
    series = Series.load(softclip.stack(tmp_path))
    lines = list(operator_map.report(series, series.find()))
    assert lines[0].startswith("the map of softclip in explicit")
    marks = {row.row: row.mark(at) for row, at in operator_map.entries(series, series.find(), "softclip")}
    assert [row for row, mark in marks.items() if mark == "has"] == [
        "the schema",
        "the checks",
        "`__torch_function__`",
        "a generic kernel",
        "the formula",
        "autocast inside TorchScript",
    ]
    assert {row for row, mark in marks.items() if mark == "choose"} >= {"autocast", "FLOP counts"}
    assert "named outputs" not in marks and "double backward" not in marks
    (line,) = [line for line in lines if line.startswith("  lacks   forward mode")]
    assert "without it: jvp and jacfwd raise" in line and "torch.attn's: tools/autograd/derivatives.yaml" in line


def test_rows_are_due_by_what_the_entry_says(tmp_path: Path) -> None:
    """A composite operator has no row of kernels, and one with named outputs or a backward operator has their rows."""
    series = Series.load(softclip.stack(tmp_path))
    named = "- func: softclip(Tensor self) -> (Tensor low, Tensor high)\n  dispatch:\n    CPU: softclip\n"
    named += "- func: _softclip_backward(Tensor grad) -> Tensor\n"
    kinds = {row.of for row in operator_map.rows()}
    for text, due in (("- func: softclip(Tensor self) -> Tensor\n", {"every"}), (named, kinds)):
        write(tmp_path, {softclip.NATIVE: text})
        assert {row.of for row, _ in operator_map.entries(series, series.find(), "softclip")} == due


def test_every_state_is_tested_and_a_failure_is_a_fault(tmp_path: Path, monkeypatch: MonkeyPatch, tool: Tool) -> None:
    seen: list[str] = []

    def tested(series: Series, commit: Commit, folder: Path, everything: bool) -> Result:
        seen.append(commit.name)
        run = Run("test/test_x.py", "Ran 2 tests", 1.0, passed=commit.name != "plain")
        return Result("2.13.0", (run,))

    monkeypatch.setattr(soundness, "problems", lambda *_: [])
    monkeypatch.setattr(operator_map, "report", lambda *_: [])
    monkeypatch.setattr(check, "build_and_test", tested)
    said = tool("--root", stack(tmp_path), "check", status=1).err
    assert said == "fork: the stack has 1 fault:\n  plain: test/test_x.py failed\n"
    assert seen == ["plain", "fast"]


def test_two_installations_of_a_release_have_forks_of_their_own(tmp_path: Path) -> None:
    base = bases.installed()
    other = dataclasses.replace(base, site=tmp_path)
    series = Series.load(stack(tmp_path))
    assert len({Build(series, series.find(), b, "auto", tmp_path).home for b in (base, other)}) == 2
