"""How the sources of the GPU's libraries are told, and with what they are compiled; no compiler runs here."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from pytest import CaptureFixture, MonkeyPatch, mark

from fork.checkout import release_tree
from fork.checkout.git import Checkout
from fork.checkout.release_tree import Tree
from fork.engine import pipeline
from fork.engine.binary.libraries import NVCC
from fork.engine.build import Build
from fork.engine.compile import device
from fork.engine.compile.device import Device
from fork.engine.compile.flags import Flags
from fork.engine.compile.toolchain import Toolkit
from fork.engine.replace.replace import replace_sources
from fork.engine.replace.search import Replacements
from fork.engine.wheel.base import Base, Probe
from fork.series import Series
from fork.tests.helpers import QUIET_GIT, commit, committed, git, write
from fork.tests.tiny import UPSTREAM
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave.file_kinds import Fragment, Whole

LISTS = """\
core = ["torch/csrc/One.cpp", "aten/src/ATen/cuda/Two.cpp"]
libtorch_python_core = ["torch/csrc/Module.cpp"]
libtorch_python_all = core[:0] + libtorch_python_core + [
    "torch/csrc/Storage.cpp",
] + glob(["torch/csrc/Many.cpp"])
libtorch_cuda_core = ["torch/csrc/Three.cpp"]
def other(name):
    return ["torch/csrc/Other.cpp", name]
"""
CONFIG = "CUDA_FLAGS= -DNAMED=space -gencode arch=compute_75,code=sm_75 -Xfatbin all, USE_NCCL=OFF, USE_CUDNN=ON,"


def base(tmp_path: Path, cuda: str = "'13.0'") -> Base:
    write(tmp_path, {"torch/version.py": f"cuda: str = {cuda}\n"})
    found = Base(Path("python"), tmp_path, "2.13.0", tmp_path / "torch.dist-info")
    found.__dict__["probe"] = Probe("/usr/include", ".so", [], "", CONFIG, "")
    return found


def test_the_bindings_of_the_lists() -> None:
    found = {"torch/csrc/Module.cpp", "torch/csrc/Storage.cpp", "torch/csrc/Many.cpp"}
    assert set(device.named(LISTS, "libtorch_python")) == found
    assert device.named(LISTS, "libtorch_cuda") == ["torch/csrc/Three.cpp"] and device.named("", "libtorch") == []


def test_definitions(tmp_path: Path) -> None:
    """What the base's own CMake files defined: for the bindings, for the GPU's libraries, for all others nothing."""
    known = Device(
        base(tmp_path),
        None,
        "",
        *(frozenset(device.named(LISTS, name)) for name in ("libtorch_python", "libtorch_cuda")),
    )
    assert known.definitions("torch/csrc/Module.cpp") == ["USE_CUDA", "USE_CUFILE", "USE_CUDNN"]
    assert known.definitions("torch/csrc/One.cpp") == []
    for path in ("aten/src/ATen/cuda/Two.cpp", "torch/csrc/Three.cpp"):
        assert {"USE_CUDA", "TORCH_CUDA_BUILD_MAIN_LIB"} <= set(known.definitions(path))
    assert Device(base(tmp_path, "None"), None, "", known.bindings).definitions("torch/csrc/Module.cpp") == []


@mark.parametrize(
    ("listed", "tool", "expected"),
    [
        ("9.0 8.6+PTX", "8.9", ["arch=compute_90,code=sm_90", "arch=compute_86,code=[sm_86,compute_86]"]),
        ("", "9.0\n8.9\n9.0", [f"arch=compute_{n},code=[sm_{n},compute_{n}]" for n in (89, 90)]),
        ("", "no devices were found", ["arch=compute_80,code=[sm_80,compute_80]"]),
    ],
)
def test_the_architecture(
    tmp_path: Path, monkeypatch: MonkeyPatch, listed: str, tool: str, expected: list[str]
) -> None:
    """The wished ones, else those of this machine, else the oldest."""
    write(tmp_path / "bin", {"nvidia-smi": f"#!/bin/sh\necho '{tool}'\n", "nvcc": "#!/bin/sh\necho no help\n"})
    for file in (tmp_path / "bin").iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    wished = tuple(n if "+" in n else f"{n}-real" for n in listed.split())
    spelled = tuple(n.replace(".", "").replace("+PTX", "") for n in wished)
    toolkit = Toolkit(tmp_path / "bin/nvcc", spelled or ("80-real", "90-real", "90-virtual"), (), ())
    command, own = (Device(base(tmp_path), toolkit, "").nvcc(one) for one in (False, True))
    assert [command[n + 1] for n, word in enumerate(command) if word == "-gencode"] == expected
    assert own.count("-gencode") == len(toolkit.architectures)
    assert "-DNAMED=space" in command and "-compress-all" in command and "code=sm_75" not in " ".join(command)


def test_nvcc_passes_on_what_it_does_not_know(tmp_path: Path) -> None:
    """It refuses a second level of optimization."""
    known = base(tmp_path)
    known.__dict__["probe"] = replace(known.probe, config=f"CXX_FLAGS= -O2 -fopenmp, {CONFIG}")
    toolkit = Toolkit(Path("/bin/true"), ("90-real",), (), ())
    found = Flags(Device(known, toolkit, ""), tmp_path, {}, [], [tmp_path], tmp_path).of("One.cu", "", True)
    assert "--forward-unknown-to-host-compiler" in found and {"-fopenmp", f"-idirafter{tmp_path}"} <= set(found)
    assert [word for word in found if word.startswith("-O")] == ["-O3"]


@mark.parametrize(
    ("told", "source"),
    [
        ("tmpxft_0002c1_00000000-6_Sort.cudafe1.cpp", "Sort.cu"),
        ("tmpxft_0002c1_00000000-6_flash_hdim_sm80.compute_90a.cudafe1.cpp", "flash_hdim_sm80.cu"),
        ("Sort.cpp", "Sort.cpp"),
    ],
)
def test_the_source_of_what_nvcc_names(told: str, source: str) -> None:
    assert NVCC.sub(r"\1.cu", f"file\t{told}\t/lib.so") == f"file\t{source}\t/lib.so"


FUSER = "torch/csrc/jit/codegen/cuda/interface.cpp"


def test_which_files_a_wheel_has(tmp_path: Path) -> None:
    """A wheel for the CPU has none of the GPU's, one for CUDA has those, and none has what other devices need."""
    files = {f"aten/src/ATen/{name}": "int use() { return word(); }\n" for name in ("A.cpp", "cuda/B.cu", "mps/C.cpp")}
    files[FUSER] = "int use() { return word(); }\n"
    checkout = Checkout.open(committed(tmp_path / "tree", {**UPSTREAM, **files}))
    cpu, gpu = (Tree(checkout, "main", "main", True, has) for has in (False, True))
    assert cpu.naming("word") == ["aten/src/ATen/A.cpp", FUSER]
    assert gpu.naming("word") == ["aten/src/ATen/A.cpp", "aten/src/ATen/cuda/B.cu", FUSER]


@mark.parametrize(
    ("path", "text", "replaces", "expected"),
    [
        ("aten/src/ATen/native/cuda/Sine.cu", "", False, True),
        ("aten/src/ATen/native/cuda/Sine.cuh", "", True, True),
        ("aten/src/ATen/native/cpu/Sine.cpp", "// as for CUDA", True, False),
        (NATIVE_FUNCTIONS, "- func: f(Tensor a) -> Tensor\n  dispatch:\n    CUDA: f_cuda\n", False, True),
        (NATIVE_FUNCTIONS, "- func: f(Tensor a) -> Tensor\n  dispatch:\n    CPU: f_cpu\n", False, False),
        (NATIVE_FUNCTIONS, "- func: f(Tensor a) -> Tensor\n  dispatch:\n    CUDA: f_cuda\n", True, False),
    ],
)
def test_a_build_tells_of_nvcc_where_it_has_code_for_it(
    path: str, text: str, replaces: bool, expected: bool, tmp_path: Path
) -> None:
    """A list of PyTorch's that the branch changes names kernels of its own for the GPU in any case."""
    write(tmp_path, {path: text})
    anchor = Whole(b"") if replaces else Fragment({})
    series = Series(tmp_path, (), {path: anchor})
    assert pipeline._has_device_code(series, {path: tmp_path / path}) == expected


def test_cuda_off_leaves_what_a_branch_changes_for_the_gpu(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    changed = dict.fromkeys(("aten/src/ATen/native/cuda/Sine.cu", "c10/cuda/Stream.h"), "// changed\n")
    build = cast(Build, SimpleNamespace(base=base(tmp_path), home=tmp_path))
    tree, flags = Tree(Checkout(tmp_path, "0"), "0", "0", True), cast(Flags, None)
    assert replace_sources(build, tmp_path, changed, tree, flags) == Replacements()
    said = "".join(f"left out {path}: the GPU keeps the base's, as --cuda off asks\n" for path in changed)
    assert capsys.readouterr().out == said


@mark.parametrize("depth", [(), ("--depth", "1")])
@mark.parametrize("known", [True, False])
def test_a_checkout_without_the_release_says_what_brings_it(
    depth: tuple[str, ...], known: bool, tmp_path: Path, monkeypatch: MonkeyPatch, quiet_git: None
) -> None:
    """The command that it names does: by the wheel's commit, or the tag of a wheel that names none."""
    upstream = committed(tmp_path / "upstream", UPSTREAM)
    git(tmp_path, "clone", "--quiet", *depth, upstream.as_uri(), "here")
    commit(upstream, {"setup.py": ""}, "The release")
    git(upstream, "tag", "v2.13.0")
    release = git(upstream, "rev-parse", "HEAD").strip()
    given = release if known else ""
    before = Tree.of(Checkout.open(tmp_path / "here"), "main", "2.13.0+cpu", given, False, {})
    monkeypatch.setattr(release_tree, "UPSTREAM", upstream.as_uri())
    said = before.lacking("2.13.0+cpu", given)
    assert not before.known and said.startswith(f"{tmp_path / 'here'} lacks torch 2.13.0+cpu's commit, so the text of ")
    assert ("--depth 1" in said) == bool(depth)
    (command,) = re.findall("`(git .*)`", said)
    subprocess.run(shlex.split(command), check=True, env=QUIET_GIT)
    after = Tree.of(Checkout.open(tmp_path / "here"), "main", "2.13.0+cpu", given, False, {})
    assert (after.known, after.release) == (True, release)
