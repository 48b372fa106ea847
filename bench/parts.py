"""`python -m bench.parts COMMAND TARGET ...`: makes the parts of `make COMMAND` in turn, and says how long each took.

`--write` keeps the times of the last runs that passed, which `python -m bench.report` shows in CONTRIBUTING.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from fork.arguments import Parser, status
from fork.errors import ForkError

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "build/parts"
FILE = ROOT / "guide/bench/parts.json"
COMMANDS = ("test", "test-all")


def make(targets: list[str]) -> tuple[dict[str, float], int]:
    """The seconds of each target up to the first that fails, and its status."""
    seconds: dict[str, float] = {}
    for target in targets:
        start = time.monotonic()
        done = subprocess.run([os.environ.get("MAKE", "make"), "--no-print-directory", target], cwd=ROOT)
        seconds[target] = time.monotonic() - start
        if done.returncode:
            return seconds, done.returncode
    return seconds, 0


def told(command: str, seconds: dict[str, float], failed: int) -> str:
    lines = [f"{part:12} {took:6.0f} s" for part, took in seconds.items()]
    total = sum(seconds.values())
    how = f"failed in {list(seconds)[-1]}" if failed else "passed"
    return "\n".join(["", *lines, f"make {command} {how} after {total:.0f} s, {total / 60:.1f} minutes"])


def write() -> None:
    runs, where = {}, set()
    for command in COMMANDS:
        if not (RUNS / f"{command}.json").is_file():
            raise ForkError(f"`make {command}` has not passed here: run that first")
        run = json.loads((RUNS / f"{command}.json").read_text())
        runs[command] = run["seconds"]
        where.add(run["where"])
    if len(where) > 1:
        raise ForkError(f"the two commands ran in different places: {'; '.join(sorted(where))}")
    FILE.write_text(json.dumps({"where": where.pop(), "runs": runs}, indent=1) + "\n")


def main() -> int | None:
    parser = Parser(prog="python -m bench.parts", description=__doc__)
    parser.add_argument("command", nargs="?", choices=COMMANDS)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--write", action="store_true", help="keep the times of the last runs that passed")
    args = parser.parse_args()
    if args.write:
        write()
        return None
    if not args.targets:
        raise ForkError("name a command and the targets that it is made of, or --write")
    kept = RUNS / f"{args.command}.json"
    kept.unlink(missing_ok=True)
    seconds, failed = make(args.targets)
    if not failed:
        from bench.cpu.record import commit, here  # torch would lie in memory while the parts run

        place = f"{here().processor}, {os.cpu_count()} processors, commit {commit()}."
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"where": place, "seconds": seconds}))
    print(told(args.command, seconds, failed), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(status("bench.parts", main))
