"""The CUDA half of the fork, built and linked without a GPU: every kernel is there for every architecture and spills no
register, uses the instructions that it was written for, and the operator is registered."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks import ROOT
from checks.built import built
from checks.cuda.machine_code import cuobjdump, functions, inspected
from fork.engine.compile import toolchain
from fork.engine.wheel import base as bases

# `make cuda` runs it with a CUDA build of torch; others have nothing to inspect.
pytestmark = pytest.mark.long
# The dtypes, and the instruction that multiplies in their machine code.
PRODUCT = {"c10::Half": r"HMMA\.16816\.F32\s", "c10::BFloat16": r"HMMA\.16816\.F32\.BF16"}


def kernels() -> set[str]:
    """The fused kernels by name, as cuobjdump and c++filt spell them without their namespaces and arguments."""
    names = ("forward_kernel<{}, 64>", "forward_kernel<{}, 128>", "backward_q_kernel<{}>", "backward_kv_kernel<{}>")
    return {f"attn_{name.format(t)}" for name in (*names, "sum_parts_kernel<{}>") for t in PRODUCT}


@dataclass(frozen=True)
class Binary:
    site: Path
    library: Path
    architectures: tuple[int, ...]

    def inspect(self, *options: str) -> str:
        return inspected(self.library, *options)

    def run(self, code: str) -> str:
        """What Python prints with this fork as its torch."""
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(self.site), "TORCH_FORK": str(self.site)}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
        assert result.returncode == 0, result.stderr
        return result.stdout


def cuda_build() -> Binary | str:
    """The CUDA build of the last PR on the installed torch, or why there is none."""
    toolkit, why = toolchain.choose(bases.installed(), "auto")
    if toolkit is None:
        return why
    site = built("on").resolve()
    architectures = tuple(int(a.split("-")[0]) for a in toolkit.architectures if a.endswith("-real"))
    return Binary(site, site / "torch/lib/libtorch.so", architectures)


@pytest.fixture(scope="module")
def binary() -> Binary:
    found = cuda_build()
    if isinstance(found, str):
        pytest.skip(f"nothing to inspect, as `fork build` says: {found}")
    if cuobjdump() is None:
        pytest.skip("cuobjdump is neither on the path nor with Triton, which a CUDA build of torch brings")
    return found


def resources(binary: Binary) -> dict[int, dict[str, dict[str, int]]]:
    """Registers, stack and local memory by architecture and kernel."""
    found: dict[int, dict[str, dict[str, int]]] = {}
    name, architecture = "", 0
    for line in binary.inspect("-res-usage").splitlines():
        if match := re.match(r"arch = sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.match(r"\s*Function (?:void )?(.*):$", line):
            name = match[1].split("(")[0]
        elif "REG:" in line and name:
            usage = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", line)}
            found.setdefault(architecture, {})[name] = usage
    return found


def test_every_kernel_is_there_for_every_architecture_and_spills_nothing(binary: Binary) -> None:
    assert {80, 90} <= set(binary.architectures)
    found = resources(binary)
    for architecture in binary.architectures:
        assert kernels() <= set(found[architecture]), f"sm_{architecture}"
        for name, usage in found[architecture].items():
            assert usage["STACK"] == usage["LOCAL"] == 0, f"sm_{architecture} {name} {usage}"
            assert usage["REG"] <= 255


def test_newer_devices_find_ptx(binary: Binary) -> None:
    assert f"sm_{max(binary.architectures)}.ptx" in binary.inspect("--list-ptx")


@dataclass(frozen=True)
class Step:
    """What a warp of a half-precision kernel issues for one step of the walk away from edges."""

    instructions: int
    products: int  # mma
    loads: int  # ldmatrix, each of four matrices
    copies: int  # cp.async of 16 bytes
    tanhs: int

    @classmethod
    def of(cls, code: str) -> Step:
        """From the loop over the walk and the one over a step's two strips in it. What is jumped over is counted."""
        lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?(\w+)(.*?);", code, re.M)
        names = [name for _, name, _ in lines]
        place = {int(address, 16): i for i, (address, _, _) in enumerate(lines)}
        loops = []
        for i, (_, name, operands) in enumerate(lines):
            target = re.search(r"0x([0-9a-f]+)", operands) if name == "BRA" else None
            begin = place.get(int(target[1], 16), i) if target else i
            if begin < i and "HMMA" in names[begin:i]:
                loops.append(range(begin, i + 1))
        steps: list[Step] = []
        for walk in loops:
            inner = [loop for loop in loops if loop != walk and loop[0] in walk and loop[-1] in walk]
            if len(inner) == 1 and "LDGSTS" in names[walk[0] : walk[-1]]:
                executed = [names[i] for i in (*walk, *inner[0])]
                steps.append(cls(len(executed), *map(executed.count, ("HMMA", "LDSM", "LDGSTS", "MUFU"))))
        return min(steps, key=lambda step: step.instructions / step.products)

    def cycles(self) -> dict[str, float]:
        """What each unit of a multiprocessor takes for the step of a block, a warp on each of its four sub-cores.

        An instruction issues per cycle; mma.m16n8k16 reaches 62 % of Hopper's 512 FMA; shared memory moves 128 bytes
        per cycle for all four, ldmatrix and cp.async 512 for each; there are four lanes for tanh. The device's memory
        is an H100's: 3.35 TB/s for 132 multiprocessors of 1.98 GHz, and attn's 128 x 64 numbers of a step.
        """
        return {
            "issue": self.instructions,
            "mma": self.products * 16 * 8 * 16 / 512 / 0.62,
            "shared memory": 16 * (self.loads + self.copies),
            "tanh": 8 * self.tanhs,
            "attn in memory": 128 * 64 * 2 / (3.35e12 / 132 / 1.98e9),
        }


@pytest.mark.parametrize("dtype", PRODUCT)
def test_kernels_use_their_instructions(binary: Binary, dtype: str) -> None:
    """Products on tensor cores, copies in the background, whole chunks, no local memory."""
    of_this = {
        n: code
        for n, code in functions(binary.library, "-arch", "sm_90").items()
        if f"<{dtype}" in n and "sum" not in n
    }
    assert len(of_this) == 4
    for name, code in of_this.items():
        assert re.search(PRODUCT[dtype], code), name
        assert re.search(r"LDGSTS\.E\.\S*128", code) and "LDSM" in code, name
        assert not re.search(r"\b(LDL|STL)\b", code), name
        if name.startswith("attn_forward"):
            assert re.search(r"STG\.E\.\S*128", code), name


def test_half_precision_is_not_bound_by_what_stands_around_products(binary: Binary) -> None:
    code = functions(binary.library, "-arch", "sm_90")
    for name in sorted(kernels()):
        if "sum_parts" not in name:
            cycles = Step.of(code[name]).cycles()
            # float16's tanh takes nine more instructions, in the time that memory takes.
            bound = "attn in memory" if name == "attn_forward_kernel<c10::Half, 64>" else "mma"
            assert cycles["issue"] < 0.9 * cycles[bound], f"{name} {cycles}"


def test_the_operator_has_cuda_kernels_and_says_that_there_is_no_gpu(binary: Binary) -> None:
    said = binary.run(
        """
        import torch
        for name in ("aten::attn", "aten::_attn_backward"):
            print(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"))
        if torch.cuda.is_available():
            print(torch.attn(*torch.ones(3, 2, 2, device="cuda")).attn.device)
        else:
            try:
                torch.attn(*torch.ones(3, 2, 2, device="cuda"))
            except RuntimeError as error:
                print(error)
        """
    )
    lines = said.splitlines()
    assert lines[:2] == ["True", "True"]
    assert "cuda" in said or "NVIDIA" in said, said


def test_the_device_test_has_cuda_variants(binary: Binary) -> None:
    """As a machine with a GPU makes them, where PyTorch adds CUDATestBase itself."""
    said = binary.run(
        f"""
        import sys, unittest
        from torch.testing._internal import common_device_type
        common_device_type.CUDATestBase.primary_device = "cuda:0"
        common_device_type.device_type_test_bases.append(common_device_type.CUDATestBase)
        sys.path.append({str(ROOT / "test")!r})
        import test_attn_kernels
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(test_attn_kernels.TestAttnKernelsCUDA):
            print(test._testMethodName)
        """
    )
    for name in (
        "errors_against_composition_64x64x64_cuda_float16",
        "a_graph_replays_on_new_inputs_n_104_cuda_float16",
        "heads_m_1_n_1100_cuda_bfloat16",
    ):
        assert f"test_{name}" in said.split()


def output(command: list[str | Path], folder: Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout


def test_a_source_build_for_rocm_leaves_the_fused_kernels_out(tmp_path: Path) -> None:
    """PyTorch's hipify translates the sources, and what is left for ROCm's compiler has no CUDA instruction."""
    folder = tmp_path / "aten/src/ATen/native/cuda"
    shutil.copytree(ROOT / "aten/src/ATen/native/cuda", folder)
    code = f"""
        from torch.utils.hipify.hipify_python import hipify
        hipify({str(tmp_path)!r}, output_directory={str(tmp_path)!r}, includes=["*"], show_detailed=False)
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    translated = {file.stem: file for file in tmp_path.rglob("hip/*.hip")}
    assert set(translated) == {file.stem for file in folder.glob("*.cu")}
    assert "ATen/native/hip/AttnLaunch.cuh" in translated["attn"].read_text()
    for name, file in translated.items():
        code = file.read_text()
        if name == "attn":  # its other headers are ATen's
            assert not re.search(r"\basm\b|mma|<cuda", code)
            code = re.sub(r"#include <(?!ATen/native/hip/).*", "", code)
        command = ["c++", "-E", "-P", "-DUSE_ROCM", f"-I{tmp_path / 'aten/src'}", "-x", "c++", "-"]
        left = subprocess.run(command, input=code, check=True, capture_output=True, text=True).stdout
        assert ("attn_cuda" in left and "attn_fused" not in left) if name == "attn" else not left.strip(), name
    # hipify turns std::min( into ::min(, which on the host may be that of int; std::min<int64_t>( stays what it is.
    for file in tmp_path.rglob("hip/*"):
        assert not re.search(r"(?<!std)::(min|max)\(", file.read_text()), file.name


def main() -> None:
    """Prints every kernel's registers on every architecture, and what they issue on 9.0."""
    found = cuda_build()
    if isinstance(found, str):
        sys.exit(found)
    table = resources(found)
    print("| registers | " + " | ".join(f"sm_{a}" for a in found.architectures) + " |")
    print("| --- |" + " --- |" * len(found.architectures))
    for name in sorted(kernels()):
        print(f"| {name} | " + " | ".join(str(table[a][name]["REG"]) for a in found.architectures) + " |")
    spills = sum(u["STACK"] + u["LOCAL"] for kernels_of in table.values() for u in kernels_of.values())
    print(f"\nBytes of stack and local memory in all kernels together: {spills}\n")
    print("| cycles of a step on sm_90 | issue | mma | shared memory | tanh | attn in memory | instructions per mma |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    code = functions(found.library, "-arch", "sm_90")
    for name in sorted(kernels()):
        if "sum_parts" not in name:
            step = Step.of(code[name])
            cycles = " | ".join(f"{c:.0f}" for c in step.cycles().values())
            print(f"| {name} | {cycles} | {step.instructions / step.products:.1f} |")


if __name__ == "__main__":
    main()
