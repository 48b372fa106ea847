"""Draws sources of a PyTorch checkout from the lists of its build_variables.bzl, the same ones for the same seed."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from bench.tool.coverage.plant import functions
from fork.errors import ForkError

# Each group with the lists that hold its sources; a source counts for the first group that has it.
GROUPS = {
    "native/cpu": ("aten_native_source_codegen_list",),
    "native": ("aten_native_source_non_codegen_list",),
    "libtorch core": ("aten_cpu_source_non_codegen_list", "libtorch_core_sources"),
    "bindings": ("libtorch_python_core_sources",),
}
# Of ATen's groups the share that is drawn is larger: they are what most branches change.
SHARES = {"native/cpu": 0.237, "native": 0.355, "libtorch core": 0.25, "bindings": 0.158}
# What only a wheel with CUDA has, which PyTorch's own build finds by its place.
DEVICE = {"native/cuda": "aten/src/ATen/native/cuda/*.cu"}
# Backends with toolchains or registrations of their own.
EXCLUDED = ("quantized", "vulkan", "xnnpack", "metal")


def groups(tree: Path) -> dict[str, list[str]]:
    """The sources of each group that the tree has, without those of excluded backends."""
    try:
        text = (tree / "build_variables.bzl").read_text()
    except OSError as error:
        raise ForkError(f"{tree} is no checkout of PyTorch: it has no build_variables.bzl") from error
    names: dict[str, list[str]] = {}
    exec(compile(text, "build_variables.bzl", "exec"), {"glob": lambda *_, **__: []}, names)  # Python as well as Bazel
    taken: set[str] = set()
    found = {}
    for group, lists in GROUPS.items():
        paths = sorted({path for one in lists for path in names.get(one, ())} - taken)
        taken |= set(paths)
        found[group] = [
            path
            for path in paths
            if path.endswith(".cpp") and (tree / path).is_file() and not any(part in path for part in EXCLUDED)
        ]
    return found


def changeable(tree: Path, path: str) -> bool:
    """Whether a source has a function to change; some have templates or tables alone."""
    return bool(functions((tree / path).read_text()))


def draw(tree: Path, count: int, seed: int, device: bool = False) -> dict[str, str]:
    """That many sources by path, with the group of each; with `device`, code of the GPU. A larger sample contains each
    smaller one."""
    sample: dict[str, str] = {}
    code = {group: sorted(str(path.relative_to(tree)) for path in tree.glob(of)) for group, of in DEVICE.items()}
    for group, paths in (code if device else groups(tree)).items():
        order = sorted(paths)
        random.Random(f"{seed} {group}").shuffle(order)
        some = islice((path for path in order if changeable(tree, path)), round(count * SHARES.get(group, 1)))
        sample |= dict.fromkeys(some, group)
    return sample
