"""The builder, on a stack of its own: what it makes works, and nothing that goes wrong loses the last good build."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from pytest import CaptureFixture, MonkeyPatch, TempPathFactory, fail, fixture, mark, raises

from fork.engine import pipeline
from fork.engine.build import environment
from fork.engine.compile import toolchain
from fork.engine.compile.flags import defined
from fork.engine.pipeline import make
from fork.engine.replace.search import Replacements
from fork.engine.wheel import base as bases
from fork.engine.wheel import disk
from fork.engine.wheel.woven import write_woven
from fork.errors import ForkError, told_plainly
from fork.series import Series
from fork.tests import softclip
from fork.tests.helpers import Tool, fork_of, python, script

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = mark.xdist_group("build")


@fixture(scope="module")
def root(tmp_path_factory: TempPathFactory) -> Path:
    """The second stack, built once from nothing."""
    root = softclip.stack(tmp_path_factory.mktemp("stack"))
    with (root / "said").open("w") as said, redirect_stdout(said):
        make(fork_of(root))
    return root


@fixture
def kernel(root: Path) -> Iterator[Path]:
    """The operator's source; after a test that changes a file of the stack all are as they were."""
    yield root / softclip.KERNEL
    softclip.stack(root)


def works(site: Path) -> bool:
    code = "import torch; print(f'{torch.softclip(torch.ones(())).item():.4f}')"
    return python(site, "-c", code) == "0.7616\n"


def test_a_second_operator_builds_and_is_a_real_one(root: Path) -> None:
    code = """
import torch
x = torch.randn(5, dtype=torch.double, requires_grad=True)
y = torch.softclip(x, bound=2.0)
assert torch.autograd.gradcheck(torch.softclip, (x, 2.0)) and torch.autograd.gradgradcheck(torch.softclip, (x, 2.0))
assert torch.allclose(y, 2 * torch.tanh(x / 2))
print(y.grad_fn.name(), torch.ops.aten.softclip.default._schema)
@torch.jit.script
def scripted(x):
    return torch.softclip(x, 2.0)
assert torch.equal(scripted(x), y)
assert torch.softclip(x.to("meta"), 2.0).is_meta
assert torch.overrides.get_testing_overrides()[torch.softclip]
try:
    torch.softclip(x, -1.0)
except RuntimeError as error:
    print(error)
"""
    # TorchScript reads its functions from a file.
    program = root / "program.py"
    program.write_text(code)
    assert python(fork_of(root).site, program).splitlines() == [
        "SoftclipBackward0 aten::softclip(Tensor self, float bound=1.) -> Tensor",
        "softclip: expected a positive bound, but got -1",
    ]


def test_a_plan_lists_what_is_compiled_and_makes_no_fork(tmp_path: Path, tool: Tool, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "link_fork", lambda _: fail("something was compiled"))
    stack = softclip.stack(tmp_path)
    words = ("--root", stack, "build", "--plan", "--cuda", "off")
    said = tool(*words).out
    for line in (
        f"new      {softclip.KERNEL}",
        f"changed  {softclip.NATIVE}",
        f"compile  {softclip.KERNEL} (new)",
        "compile  generated/registration.cpp (generated for what is added)",
        f"stays    all else, as torch {bases.installed().version} has it",
    ):
        assert f"{line}\n" in said
    assert f"left out {softclip.INSIDE}: " in said and f"compile  {softclip.INSIDE}" not in said
    assert said.splitlines()[-1].endswith(" s: nothing is compiled or installed")
    assert "lacks NextYearsDevice: " in said
    for file in (stack / "stack/series.yaml", stack / softclip.NATIVE):
        file.write_text(file.read_text().replace("NextYearsDevice", "SparseCPU"))
    assert "note " not in tool(*words).out
    assert not fork_of(stack).site.exists() and not [*fork_of(stack).home.glob("s*")]
    (stack / softclip.NATIVE).write_text(softclip.FILES[softclip.NATIVE].replace("Tensor self", "Tensr self"))
    assert "native_functions.yaml:1: unrecognized type Tensr" in tool(*words, status=1).err


@mark.parametrize("more", [["--plan"], []])
def test_nothing_is_built_again_that_did_not_change(root: Path, more: list[str], tool: Tool) -> None:
    before = fork_of(root).site.resolve()
    assert "up to date" in tool("--root", root, "build", "--cuda", "off", *more).out
    assert fork_of(root).site.resolve() == before


def test_what_the_wheel_has_no_place_for_is_told(root: Path) -> None:
    said = (root / "said").read_text()
    assert f"left out {softclip.INSIDE}: it goes into a function of PyTorch's" in said
    lacks = f"note     torch {bases.installed().version} lacks NextYearsDevice: {softclip.NATIVE} goes without\n"
    assert lacks in said
    woven = (fork_of(root).site / "torchgen/packaged/ATen/native/native_functions.yaml").read_text()
    assert "CompositeExplicitAutograd: softclip\n" in woven and "NextYearsDevice" not in woven


def test_its_types_are_known(root: Path) -> None:
    stubs = (fork_of(root).site / "torch/_C/_VariableFunctions.pyi").read_text()
    assert "def softclip(input: Tensor, bound: _float = 1.0) -> Tensor: ..." in stubs
    assert '"softclip",' in stubs


def test_the_same_state_in_another_folder_is_not_compiled_again(
    root: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    """Nor is its library another one: no path of a folder is in it."""
    other = softclip.stack(tmp_path / "another folder's" / "stack")
    site = make(fork_of(other))
    assert re.search(r", ([1-9]\d*) of \1 objects from ccache \(", capsys.readouterr().out)
    library = "torch/lib/libtorch.so"
    assert (site / library).read_bytes() == (fork_of(root).site / library).read_bytes()


def test_a_source_that_does_not_compile_leaves_the_last_good_fork(root: Path, kernel: Path) -> None:
    kernel.write_text(kernel.read_text().replace(".tanh()", ".tahn()"))
    with raises(ForkError, match=r"compiling failed: .*tahn.*compile\.log"):
        make(fork_of(root))
    assert works(fork_of(root).site)


DERIVATIVES = "tools/autograd/derivatives.yaml"


@mark.parametrize(
    ("path", "old", "new", "sentence"),
    [
        (softclip.NATIVE, "Tensor self", "Tensr self", "1: unrecognized type Tensr"),
        (softclip.NATIVE, "variants:", "varians:", "1: .*'varians': 'function'"),
        (softclip.NATIVE, "CompositeExplicitAutograd,", "CPUU,", "1: unknown dispatch key CPUU"),
        (softclip.NATIVE, "function\n", "[function\n", r"2: .*did not find expected ',' or '\]'"),
        (DERIVATIVES, "softclip(", "softclp(", r"2: could not find ATen function .* softclp\("),
        (DERIVATIVES, "self: grad", "selff: grad", "2: No matching output for forward"),
    ],
)
def test_what_the_generators_reject_is_told_with_its_cause_and_line(
    root: Path, kernel: Path, path: str, old: str, new: str, sentence: str
) -> None:
    comment = "# The second line is the entry's.\n" if path == DERIVATIVES else ""
    (root / path).write_text(comment + softclip.FILES[path].replace(old, new))
    build = fork_of(root)
    state = {path: root / path for path in build.series.state(build.commit)}
    generated = build.home / "work/generated"
    with raises(ForkError, match=rf"generators reject {root}/{path}:{sentence}.*generate\.log\)") as caught:
        pipeline._generate(build, build.site, state[softclip.NATIVE], state.get(DERIVATIVES), generated)
    assert "Traceback" in (build.home / "work/generate.log").read_text() and "\n" not in str(caught.value)


def test_a_disk_that_is_full_while_generating(root: Path, tmp_path: Path) -> None:
    full = script(tmp_path / "python", "cat /proc/version > /dev/full")
    build = replace(fork_of(root), base=replace(bases.installed(), python=full), folder=tmp_path)
    (build.home / "work").mkdir(parents=True)
    native = root / softclip.NATIVE
    with raises(ForkError, match="^the disk is full at "):
        pipeline._generate(build, tmp_path, native, None, tmp_path / "generated")


@mark.long
def test_a_file_of_a_fork_edited_in_place_leaves_the_base_and_is_seen(root: Path, kernel: Path, tool: Tool) -> None:
    base, build = bases.installed(), fork_of(root)
    paths = ("torch/functional.py", "torch/include/ATen/ATen.h", "torch/overrides.py", "torchgen/gen.py")
    before = {path: (base.site / path).read_bytes() for path in paths}
    time.sleep(0.01)
    for path in paths:
        with (build.site / path).open("a") as file:
            file.write("// by hand\n" if path.endswith(".h") else "# by hand\n")
    assert {path: (base.site / path).read_bytes() for path in paths} == before
    edited = build.site.resolve()
    words = ("--root", root, "build", "--cuda", "off")
    assert "edited   torch/functional.py and 3 more of the fork: it is built anew" in tool(*words).out
    assert (edited / "torch/functional.py").read_text().endswith("# by hand\n")
    assert not any((build.site / path).read_text().endswith("by hand\n") for path in paths)
    assert "up to date" in tool(*words).out


def test_what_was_woven_is_remembered_until_a_part_of_it_changes(tmp_path: Path) -> None:
    root, base = softclip.stack(tmp_path / "root"), bases.installed()

    def woven(stage: str) -> str:
        series = Series.load(root)
        write_woven(base, series, series.find(), tmp_path / stage, tmp_path / "work")
        return (tmp_path / stage / "torch/overrides.py").read_text()

    first = woven("first")
    remembered = {file: file.stat().st_mtime_ns for file in (tmp_path / "work/woven").iterdir()}
    assert woven("second") == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "work/woven").iterdir()} == remembered
    fragment, series = root / "torch/overrides.py", root / "stack/series.yaml"
    fragment.write_text(fragment.read_text().replace("bound=1.0", "bound=2.0"))
    third = woven("third")
    assert third != first and third.replace("bound=2.0", "bound=1.0") == first
    series.write_text(series.read_text().replace("after torch.softmax", "before torch.softmax"))
    fourth = woven("fourth")
    assert fourth != third and sorted(fourth.splitlines()) == sorted(third.splitlines())


def test_a_path_that_the_wheel_has_under_another_name(root: Path, kernel: Path) -> None:
    series = softclip.SERIES.replace("torch/overrides.py", "torch/overides.py")
    (root / "stack/series.yaml").write_text(series)
    (root / "torch/overrides.py").rename(root / "torch/overides.py")
    with raises(ForkError, match=r"torch/overides\.py has an anchor, .*: did you mean torch/overrides\.py\?"):
        make(fork_of(root))
    (root / "torch/overides.py").unlink()


def test_a_base_that_was_tampered_with_is_refused(root: Path, tmp_path: Path) -> None:
    base = bases.installed()
    site = tmp_path / "site"
    disk.copy(base, site, tmp_path / "store")
    build = replace(fork_of(root), base=replace(base, site=site), folder=tmp_path / "build")
    for path, change in (
        ("torch/overrides.py", lambda data: data + b"# mine\n"),  # which is woven
        ("torch/functional.py", lambda data: data + b"# mine\n"),
        ("torch/lib/libtorch_cpu.so", lambda data: data[: len(data) // 2]),
        ("torch/include/ATen/core/Tensor.h", lambda data: data[:10]),
        ("torch/nn/functional.py", None),
    ):
        whole = (site / path).read_bytes()
        if change:
            disk.write(site, path, change(whole))
        else:
            (site / path).unlink()
        with raises(ForkError, match=f"{path} is not the file that torch .* installed .*: reinstall torch"):
            make(build)
        disk.write(site, path, whole)


@mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "full", "somewhere"), "the disk is full at "),
        (shutil.Error([("a", "b", str(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))]), "the disk is full at "),
        (OSError(errno.EROFS, "no", "somewhere"), "cannot be written: choose a folder"),
        (OSError(errno.EACCES, "no", "somewhere"), "cannot be written: choose a folder"),
    ],
)
def test_a_file_system_that_refuses_is_told_plainly(tmp_path: Path, error: OSError, sentence: str) -> None:
    with raises(ForkError, match=sentence), told_plainly(tmp_path):
        raise error


def test_a_fork_that_crashes_when_imported_says_where(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from torch import inner\n")
    (package / "inner.py").write_text("import ctypes\n\nctypes.string_at(1)\n")
    with raises(ForkError, match=r"the last good one stays: it was ended by SIGSEGV \(Segmentation f") as caught:
        pipeline._try_out(fork_of(root), tmp_path, Replacements())
    frames = str(caught.value).splitlines()[1:]
    places = (("inner", 3), ("__init__", 1))
    inner, outer = (f'  File "{package}/{name}.py", line {line} in <module>' for name, line in places)
    assert frames.index(inner) < frames.index(outer) and "importlib" not in str(caught.value)


@mark.parametrize("name", toolchain.VARIABLES)
def test_what_compiles_is_part_of_a_build_and_no_program_inherits_it(
    root: Path, monkeypatch: MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    digests = [fork_of(root).digest()]
    for value in ("", "one", "another"):
        monkeypatch.setenv(name, value)
        digests.append(fork_of(root).digest())
    assert len(set(digests)) == 4
    assert name not in environment(fork_of(root).site, Path(sys.executable))


# Names of the C++ library, of its extensions and of its runtime.
OF_THE_LIBRARY = re.compile(r"_Z(TV|TT|TI|TS|GV)?N?K?(S[tabsiod]|9__gnu_cxx|10__cxxabiv1)|__cxa_|__gxx_")


def printed(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(site: Path) -> dict[str, set[str]]:
    """What each library of a fork exports of the C++ library, by the library's name."""
    names = {}
    for library in sorted([*site.glob("torch/_C.*.so"), site / "torch/lib/libtorch.so"]):
        lines = printed("nm", "-DP", "--defined-only", library).splitlines()
        names[library.name] = {line.split()[0] for line in lines}
    assert any("softclip" in name for name in names["libtorch.so"]) and len(names) == 2
    return {library: set(filter(OF_THE_LIBRARY.match, found)) for library, found in names.items()}


@mark.long
def test_a_compiler_that_links_its_library_statically(root: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """The copies of libstdc++ in the fork's libraries stay their own, whatever else the process loads."""
    monkeypatch.setenv("LDFLAGS", "-static-libstdc++")
    build = fork_of(root, tmp_path / "build")
    site = make(build)
    needed = printed("readelf", "-d", site / "torch/lib/libtorch.so")
    assert "libstdc++" not in needed and "libc10.so" in needed
    assert exported(site) == exported(fork_of(root).site)
    assert works(site)

    # Other flags link again, in this build of the same folder.
    assert not build.stale() and "BIND_NOW" not in needed
    monkeypatch.setenv("LDFLAGS", "-static-libstdc++ -Wl,-z,now")
    assert build.stale()
    assert "BIND_NOW" in printed("readelf", "-d", make(build) / "torch/lib/libtorch.so")


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    for chosen, sentence in (
        ("", r"no C\+\+ compiler was found: install g\+\+"),
        ("ccache g++ -m64", r"set CXX=g\+\+, and CMAKE_CXX_COMPILER_LAUNCHER=ccache"),
        ("no-such-compiler", "no-such-compiler, which CXX names, was not found"),
        # As clang is where its own OpenMP is not installed.
        (str(script(tmp_path / "c++", "exit 1")), r"c\+\+ has no OpenMP .*: set CXX=g\+\+, or install clang's"),
    ):
        if chosen:
            monkeypatch.setenv("CXX", chosen)
        with raises(ForkError, match=sentence):
            toolchain.check_tools(bases.installed())


def test_without_python_headers_it_says_what_to_install(tmp_path: Path) -> None:
    answers = '{"include": "/nowhere", "suffix": "", "definitions": [], "architectures": ""}'
    headless = script(tmp_path / "python", f"echo '{answers}'")
    with raises(ForkError, match=r"Python\.h is not in /nowhere: install"):
        toolchain.check_tools(replace(bases.installed(), python=headless))


@mark.parametrize(
    ("release", "sentence"),
    [("1.13.1", "the oldest release served is 2.7"), ("newest", "expected a release such as 2.13.0")],
)
def test_a_release_that_is_not_served_is_refused(release: str, sentence: str, tmp_path: Path) -> None:
    with raises(ForkError, match=sentence):
        bases.obtain(release, "off", tmp_path)


def test_a_release_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    # With a constraint on torch, as a machine may have, pip says the same in other words: see test_messages.py.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    with raises(ForkError, match=r"pip finds no torch 2\.99\.0 for this Python and machine"):
        bases.obtain("2.99.0", "off", tmp_path)


@mark.parametrize(
    ("machine", "stub", "names"),
    [
        ("x86_64", "void *AVX512, void *AVX2", ["DEFAULT", "AVX2", "AVX512"]),
        # torch 2.8 and torch 2.13
        ("aarch64", "void *SVE256", ["DEFAULT", "SVE256"]),
        ("aarch64", "void *SVE128, void *SVE256", ["DEFAULT", "SVE256", "SVE128"]),
        ("aarch64", "", ["DEFAULT"]),
        ("ppc64le", "void *VSX", ["DEFAULT"]),
    ],
)
def test_kernels_are_compiled_for_the_instruction_sets_of_the_base(
    tmp_path: Path, machine: str, stub: str, names: list[str]
) -> None:
    header = tmp_path / "include/ATen/native/DispatchStub.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"void* get_call_ptr(DeviceType, void *DEFAULT, {stub});")
    capabilities = toolchain.instruction_sets(tmp_path, machine)
    assert list(capabilities) == names
    definitions = defined(capabilities)
    assert ("SVE" in definitions) == ("SVE" in stub and machine == "aarch64")
    assert ("AVX2" in definitions) == (machine == "x86_64")
