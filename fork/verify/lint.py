"""Runs the linters that a checkout of PyTorch names on what a stack adds to it, as far as pip has them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fork import process
from fork.checkout.git import Checkout
from fork.clock import Clock
from fork.cpp.difference import hunks
from fork.digest import digest
from fork.engine.compile import toolchain
from fork.errors import ForkError
from fork.lock import alone

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG = ".lintrunner.toml"
# The scripts of `init_command`: the first one calls pip, the second one loads a program that pip may have too.
PIP, DOWNLOAD = "tools/linter/adapters/pip_init.py", "tools/linter/adapters/s3_init.py"
# What PyTorch's CI makes before it lints: torch/version.py, and the typing files without which mypy finds no operator.
GENERATORS = (
    ("tools/generate_torch_version.py", "--is-debug=false"),
    (
        "tools/pyi/gen_pyi.py",
        "--native-functions-path=aten/src/ATen/native/native_functions.yaml",
        "--tags-path=aten/src/ATen/native/tags.yaml",
        "--deprecated-functions-path=tools/autograd/deprecated.yaml",
    ),
)


@dataclass(frozen=True)
class Linter:
    """What a linter needs: packages of pip, and where it looks for a program of one; or `lacks`, why it cannot run."""

    code: str
    packages: tuple[str, ...] = ()
    program: str = ""
    lacks: str = ""


def lint(checkout: Checkout, tip: str, folder: Path, wanted: Sequence[str] = ()) -> list[str]:
    """What linters find in the lines between the checkout's head and the commit `tip`; `folder` keeps the linters.

    `wanted` names some linters by their codes. The checkout is only read: the linters run on a copy of `tip`. Prints
    which of them ran, and why others did not.
    """
    text = checkout.read_at(tip, CONFIG)
    if text is None:
        raise ForkError(f"{checkout.path} has no {CONFIG}, which names PyTorch's linters: give a later checkout")
    lines = touched(checkout, tip)
    entries = [entry for entry in tomllib.loads(text)["linter"] if any(concerns(entry, path) for path in lines)]
    if unknown := sorted(set(wanted) - {entry["code"] for entry in entries}):
        known = ", ".join(entry["code"] for entry in entries)
        raise ForkError(f"--linters {unknown[0]}: no linter of the stack's files has this name: they are {known}")
    with tempfile.TemporaryDirectory() as made:
        tree = Path(made) / "pytorch"
        clock = Clock(16)
        _copy(checkout, tip, tree)
        not_made = _generate(tree)
        clock.step("copied", f"{checkout.path}, with the stack")
        linters = [needed(entry, tree) for entry in entries if not wanted or entry["code"] in wanted]
        home, linters = _install(linters, folder / "lint")
        able = [linter for linter in linters if not linter.lacks]
        clock.step("installed", f"{len(able)} linters")
        try:
            # A process for each, which takes no longer than one for all and tells when it has ended.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                told = pool.map(lambda linter: _lintrunner(home, linter, tree, sorted(lines)), able)
                messages = [message for found in told for message in found]
        finally:
            _stop_daemon(tree)
    failed = {message["code"]: _last_words(message["description"]) for message in messages if not message["path"]}
    ran = [linter.code for linter in able if linter.code not in failed]
    print(f"{'linters':16} {' '.join(ran) or 'none'} ran", flush=True)
    left_out = [f"{linter.code}: {linter.lacks}" for linter in linters if linter.lacks] + not_made
    for reason in (*left_out, *(f"{code}: it failed: {words}" for code, words in failed.items())):
        print(f"{'left out':16} {reason}", flush=True)
    return sorted(set(_caused(messages, lines, tree)))


def touched(checkout: Checkout, tip: str) -> dict[str, set[int] | None]:
    """The lines of each file at `tip` that the checkout's head lacks; None for a file that is new."""
    found: dict[str, set[int] | None] = {}
    paths = checkout.git("diff", "--name-only", "-z", "--no-renames", "--diff-filter=AM", checkout.head, tip)
    for path in paths.split("\0")[:-1]:
        before, after = (checkout.read_at(commit, path) for commit in (checkout.head, tip))
        old, new = ((text or "").split("\n") for text in (before, after))
        mine = {line for _, _, c, d in hunks(old, new) for line in range(c + 1, d + 1)}
        if before != after:  # else its mode alone
            found[path] = None if before is None else mine
    return found


def concerns(entry: Mapping[str, Any], path: str) -> bool:
    """Whether a linter's patterns take a file, as lintrunner reads them: only `**` goes through folders."""

    def matches(patterns: Iterable[str]) -> bool:
        return any(re.fullmatch(_expression(pattern), path) for pattern in patterns)

    return matches(entry["include_patterns"]) and not matches(entry.get("exclude_patterns", ()))


def _expression(pattern: str) -> str:
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(meaning.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern))


def needed(entry: Mapping[str, Any], tree: Path) -> Linter:
    """What a linter needs, by its entry in the configuration of this tree."""
    code, command = str(entry["code"]), list(entry.get("init_command", ()))
    if any(word.startswith("--build_dir") for word in entry["command"]):
        return Linter(code, lacks="it reads a build of PyTorch")
    if not command:
        return Linter(code)
    if PIP in command:
        return Linter(code, tuple(word for word in command[command.index(PIP) + 1 :] if not word.startswith("-")))
    options = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
    if DOWNLOAD in command:
        # Of a program that PyTorch loads from a store of its own, the address names the version.
        known = json.loads((tree / options["config-json"]).read_text()).get(options["linter"], {})
        if found := re.search(r"/(\d+\.\d+\.\d+)/", known.get("Linux", {}).get("download_url", "")):
            program = f"{options['output-dir']}/{options['output-name']}"
            return Linter(code, (f"{options['linter']}=={found[1]}",), program)
    return Linter(code, lacks=f"pip does not have what `{' '.join(command)}` sets up")


def _copy(checkout: Checkout, tip: str, tree: Path) -> None:
    """The files of a commit, as a repository of their own: lintrunner wants to be in one."""
    index = {"GIT_INDEX_FILE": str(tree.with_suffix(".index"))}
    checkout.git("read-tree", tip, **index)
    checkout.git("checkout-index", "--all", f"--prefix={tree}/", **index)
    process.run(["git", "init", "--quiet", tree], "the copy of the checkout failed")


def _generate(tree: Path) -> list[str]:
    """Runs those of the generators that this release has; returns what they could not make, and why."""
    missing = []
    for script, *options in GENERATORS:
        if (tree / script).is_file():
            module = script.removesuffix(".py").replace("/", ".")
            done = process.attempt([sys.executable, "-m", module, *options], cwd=tree, env=process.outside())
            if done.returncode:
                missing.append(f"what {script} generates and linters read: {process.reason(done)}")
    return missing


def _install(linters: Sequence[Linter], folder: Path) -> tuple[Path, list[Linter]]:
    """A virtual environment with the packages of these linters, and the linters with what pip said of each."""
    home = folder / digest(sys.version.encode(), *("\n".join(linter.packages).encode() for linter in linters))
    memory = home / "lacks.json"
    with alone(folder / f"{home.name}.lock", "the linters are being installed"):
        if not memory.is_file():
            shutil.rmtree(home, ignore_errors=True)
            process.run([sys.executable, "-m", "venv", home], f"no environment could be made in {home}")
            pip = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            lacks = {}
            for linter in linters:
                done = process.attempt([*map(str, pip), *linter.packages]) if linter.packages else None
                if done and done.returncode:
                    lacks[linter.code] = process.pip_error(done)
            memory.write_text(json.dumps(lacks))
        lacks = json.loads(memory.read_text())
    return home, [replace(linter, lacks=lacks.get(linter.code, linter.lacks)) for linter in linters]


def _lintrunner(home: Path, linter: Linter, tree: Path, paths: Sequence[str]) -> list[dict[str, Any]]:
    """What lintrunner prints, one message a line; a message without a path is of a linter that failed."""
    clock = Clock(16)
    if linter.program:
        (tree / linter.program).parent.mkdir(parents=True, exist_ok=True)
        (tree / linter.program).symlink_to(home / "bin" / Path(linter.program).name)
    data = home / "data" / linter.code
    data.mkdir(parents=True, exist_ok=True)
    command = [toolchain.which("lintrunner"), f"--configs={CONFIG}", f"--data-path={data}", "--output=json"]
    search = os.pathsep.join([str(home / "bin"), str(Path(command[0]).parent), os.environ.get("PATH", "")])
    variables = process.outside() | {"PATH": search}
    done = process.attempt([*command, "--take", linter.code, "--", *paths], cwd=tree, env=variables)
    clock.step("linted", linter.code)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode and not lines:
        errors = [line.partition("error:")[2].strip() for line in done.stderr.splitlines() if "error:" in line]
        raise ForkError(f"lintrunner failed: {errors[0] if errors else process.reason(done)}")
    return [json.loads(line) for line in lines]


def _stop_daemon(tree: Path) -> None:
    """Ends the daemon that mypy's linter starts: it would stay, with a gigabyte of memory."""
    status = tree / ".dmypy.json"
    if status.is_file():
        with suppress(ProcessLookupError):
            os.kill(json.loads(status.read_text())["pid"], signal.SIGTERM)


def _caused(messages: Iterable[Mapping[str, Any]], lines: Mapping[str, set[int] | None], tree: Path) -> Iterator[str]:
    """The messages about the stack's lines; one about a whole file counts where the file is new."""
    for message in messages:
        path = os.path.relpath(tree / message["path"], tree) if message["path"] else ""
        if path in lines:
            mine, said = lines[path], (message.get("description") or "").strip().splitlines()
            of_ours = [line for line in _places(message) if mine is None or line in mine]
            if of_ours:
                what = ": ".join([message["name"], *(line.strip() for line in said[:1])])
                yield f"{path}:{of_ours[0] or 1}: {message['code']}: {what}"


def _places(message: Mapping[str, Any]) -> Iterator[int | None]:
    """The lines that a message is about; of a formatter those that it would replace, or those around an insertion."""
    if message.get("replacement") is None:
        yield message["line"]
        return
    before, after = message["original"].splitlines(), message["replacement"].splitlines()
    for start, end, _, _ in hunks(before, after):
        yield from range(start + 1, end + 1) if end > start else range(start, start + 2)
    if before == after:  # but for the newline at its end
        yield len(before)


def _last_words(description: str) -> str:
    """What a linter that failed wrote last to its standard error, of all that lintrunner tells."""
    lines = description.partition("STDERR:")[2].partition("STDOUT:")[0].split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")
