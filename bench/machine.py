"""What a figure stands beside: the processor that it was measured on, and the commit."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# AMD's processors by vendor, family and whether they have AVX-512
ZEN: dict[tuple[str | None, str | None, bool], str] = {
    ("AuthenticAMD", family, avx512): f" Zen {zen}"
    for family, avx512, zen in (("25", False, 3), ("25", True, 4), ("26", True, 5))
}


def processor() -> str:
    """This machine's, with the instruction sets that matter here."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    pairs = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    model = pairs.get("model name") or platform.processor() or platform.machine()
    plain = re.sub(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|@.*|\d+-Core", " ", model, flags=re.IGNORECASE)
    # Models' names do not say which instructions they have, and virtual machines hide the models.
    flags = pairs.get("flags", "").split()
    sets = [name for name, flag in (("AVX512", "avx512f"), ("AMX", "amx_tile")) if flag in flags]
    sets = sets or ["AVX2"] * ("avx2" in flags)
    family = ZEN.get((pairs.get("vendor_id"), pairs.get("cpu family"), "avx512f" in flags), "")
    return " ".join((plain + family).split()) + (f" ({', '.join(sets)})" if sets else "")


def commit() -> str:
    """The commit that is checked out, with `-dirty` if files differ from it that can change a measurement."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ":!guide", ":!*.md"], capture_output=True)
    return found.stdout.strip() + "-dirty" * bool(changed.returncode) if found.returncode == 0 else "unknown"
