"""Code that is compiled for each CPU capability: no function of attn has one name in all of their objects."""

from __future__ import annotations

import re

from checks import ROOT
from checks.built import built
from fork import process

CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")


def test_no_function_of_attn_is_shared_by_capabilities() -> None:
    """The linker keeps one of equal weak names, so code with AVX-512 could run on a processor without it."""
    built()
    found = dict.fromkeys(CAPABILITIES, 0)
    for path in ROOT.glob("build/forks/explicit-*/work/objects/*.o"):
        lines = process.run(["nm", "-C", "--defined-only", path], f"the names in {path} cannot be read").splitlines()
        names = [line.split(maxsplit=2) for line in lines]
        inside = [c for c in CAPABILITIES if any(f"attn_tile::{c}::" in name for _, _, name in names)]
        for capability in inside:
            found[capability] += 1
            weak = [name for _, kind, name in names if kind in "WVu" and re.search("attn", name, re.IGNORECASE)]
            assert [name for name in weak if f"::{capability}::" not in name] == []
    assert all(found.values()), found
