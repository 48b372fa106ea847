"""`python -m bench.build`: how long a build takes from nothing and from ccache, by step and by unit of compilation.

`--write` puts it into guide/build_time.md, and `--try NAME` a build without ccache as one row of its table of tries.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.cpu.record import commit, here
from bench.documents import fill, markdown_table
from fork.arguments import Parser, status
from fork.errors import ForkError

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "guide/bench/build.json"
GUIDE = ROOT / "guide/build_time.md"
STEP = re.compile(r"^(copy|weave|generate|compile|install) .*\((\d+\.\d) s\)$", re.MULTILINE)
CACHED = "ccache has all, in another folder"


def measured(folder: Path, **variables: str) -> dict[str, float]:
    """The seconds of each step of a build in an empty folder, of all, and of the processors."""
    shutil.rmtree(folder, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "fork", "--root", str(ROOT), "build", "--cuda", "off", "--build", str(folder)]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    if done.returncode:
        raise ForkError(f"the build failed: {(done.stderr or done.stdout).splitlines()[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    steps = {name: float(seconds) for name, seconds in STEP.findall(done.stdout)}
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return steps | {"all": round(sum(steps.values()), 1), "processors": round(used, 1)}


def units(folder: Path) -> dict[str, float]:
    """The seconds of each unit of compilation, the longest first."""
    about = [json.loads(file.read_text()) for file in folder.glob("forks/*/work/objects/*.json")]
    taken = {one["unit"]: one["seconds"] for one in about}
    return dict(sorted(taken.items(), key=lambda unit: -unit[1]))


def table(rows: dict[str, dict[str, float]]) -> str:
    steps = ["copy", "weave", "generate", "compile", "install", "all", "processors"]
    body = [[name, *(f"{row[step]:.1f}" for step in steps)] for name, row in rows.items()]
    return markdown_table(["build", *steps], body)


def kept_here() -> dict[str, Any]:
    """What was measured; empty where nothing was."""
    empty: dict[str, Any] = {"builds": {}, "units": {}, "tries": [], "where": "Not measured yet."}
    return empty | (json.loads(FILE.read_text()) if FILE.is_file() else {})


def document(kept: dict[str, Any]) -> dict[str, str]:
    """What stands at the guide's markers."""
    tries = [[t["name"], f"{t['compile']:.1f}", f"{t['processors']:.1f}", t["where"]] for t in kept["tries"]]
    return {
        "build": f"{table(kept['builds'])}\n{kept['where']}\n",
        "units": markdown_table(["unit", "seconds"], [[f"`{n}`", f"{s:.1f}"] for n, s in kept["units"].items()]),
        "tries": markdown_table(["tried", "compile, seconds", "all processors, seconds", "where"], tries),
    }


def main() -> None:
    parser = Parser(prog="python -m bench.build", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the result into the guide")
    parser.add_argument("--try", dest="name", metavar="NAME", help="add one build without ccache to the guide's tries")
    args = parser.parse_args()
    folder = ROOT / "build/bench-build"
    kept = kept_here()
    where = f"{here().processor}, {os.cpu_count()} processors, commit {commit()}."
    plain = measured(folder / "plain", CCACHE_DISABLE="1")
    if args.name:
        kept["tries"] = [t for t in kept["tries"] if t["name"] != args.name]
        kept["tries"].append({"name": args.name, "where": where} | plain)
    else:
        store = {"CCACHE_DIR": str(folder / "ccache")}
        shutil.rmtree(folder / "ccache", ignore_errors=True)
        kept["units"], kept["where"] = units(folder / "plain"), where
        kept["builds"] = {
            "without ccache": plain,
            "ccache is empty": measured(folder / "first", **store),
            CACHED: measured(folder / "other/second", **store),
        }
        print(table(kept["builds"]))
        print(*(f"{seconds:6.1f} s  {name}" for name, seconds in kept["units"].items()), sep="\n")
    if args.name or args.write:
        FILE.write_text(json.dumps(kept, indent=1) + "\n")
        GUIDE.write_text(fill(GUIDE.read_text(), document(kept), GUIDE.name))
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(status("bench.build", main))
