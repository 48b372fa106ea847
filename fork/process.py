"""Runs a program, says in one line why it failed, and leaves none behind when this process ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fork.errors import ForkError

PR_SET_PDEATHSIG = 1
DISK_FULL = os.strerror(errno.ENOSPC)
# How faulthandler tells a frame of Python, and, from Python 3.14 on, one of C; those of `import` itself say nothing.
FRAME = re.compile(r"^  ((?:File|Binary file) \"(?!<frozen importlib).*)$", re.MULTILINE)


def run(
    command: Sequence[str | Path], failed: str, *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> str:
    """What the program prints on its standard output; `failed` begins the error when its status is not 0."""
    done = attempt(command, env=env, cwd=cwd)
    if done.returncode:
        raise ForkError(f"{failed}: {reason(done)}")
    return done.stdout


def attempt(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    """How the program ended and what it printed, for a caller that tells a failure in its own words."""
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, preexec_fn=die_with_parent)


class Together:
    """Programs that run at once, each a group of processes with its children; `stop` ends all and lets none begin."""

    # What such a program has started itself does not end with it: a compiler's driver leaves the compiler running.
    GROUP = ("/bin/sh", "-c", 'trap "trap - TERM; kill 0" TERM; "$@" & wait $!', "sh")
    # Seconds in which a compiler may remove its temporary files. What has just begun may miss the signal for it.
    PATIENCE = 2.0

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._lock = threading.Condition()
        self.stopped = False

    def attempt(
        self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """As the function of this name; ended by `stop`, it has a status that is not 0 and no words."""
        with self._lock:
            if self.stopped:
                return subprocess.CompletedProcess(command, 1, "", "")
            program = subprocess.Popen(
                [*self.GROUP, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=env,
                cwd=cwd,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
            self._running.add(program.pid)
        out, errors = program.communicate()
        with self._lock:
            self._running.discard(program.pid)
            self._lock.notify_all()
        status = program.returncode
        return subprocess.CompletedProcess(command, 128 - status if status > 128 else status, out, errors)

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            for by in (signal.SIGTERM, signal.SIGKILL):
                for group in self._running:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.killpg(group, by)
                self._lock.wait_for(lambda: not self._running, self.PATIENCE)


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """Why the program stopped: the last line that it wrote to its standard error, or the signal that ended it.

    A Python that runs with faulthandler also says where the signal came; its frames follow, the innermost first.
    """
    if DISK_FULL in done.stderr:
        return "the disk is full: free some space and try again"
    if done.returncode < 0:
        number = -done.returncode
        # Most of the real-time signals have no name.
        name = next((one.name for one in signal.Signals if one == number), f"signal {number}")
        return "\n  ".join([f"it was ended by {name} ({signal.strsignal(number)})", *FRAME.findall(done.stderr)])
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with status {done.returncode} and no message"


def pip_error(done: subprocess.CompletedProcess[str]) -> str:
    """Why pip failed, in the first of its own words."""
    errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    return errors[0] if errors else reason(done)


def outside() -> dict[str, str]:
    """The environment without what leads a Python to a fork."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TORCH_FORK")}


def place(done: subprocess.CompletedProcess[str], folder: Path) -> str:
    """Where in a folder a Python program raised what ended it, behind `reason`; empty if it did not."""
    lines = re.findall(rf'^ *File "{re.escape(str(folder))}/(.+)", line (\d+)', done.stderr, re.MULTILINE)
    return f", at {':'.join(lines[-1])}" if lines and done.returncode > 0 else ""


# Loaded here: a new process of a program with threads must not wait for a lock of the loader.
SYSTEM = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """For a new process: the system ends it by SIGTERM when this one ends, also by SIGKILL."""
    if SYSTEM is not None:
        SYSTEM.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
