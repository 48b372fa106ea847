"""Turns what the file system refuses into a sentence for the user."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fork.errors import ForkError


@contextlib.contextmanager
def told_plainly(place: Path, advice: str = "choose a folder that is yours") -> Iterator[None]:
    """Turns the file system's refusals into a sentence; `advice` is for what may not be written."""
    try:
        yield
    except BrokenPipeError:  # nothing was refused: who read the output has gone
        raise
    except shutil.Error as error:  # of a whole tree: source, target and reason of each file
        reasons = [str(reason) for _, _, reason in error.args[0]] if isinstance(error.args[0], list) else [str(error)]
        full = any(os.strerror(errno.ENOSPC) in reason for reason in reasons)
        raise ForkError(
            f"the disk is full at {place}: free some space and try again" if full else f"{place}: {reasons[0]}"
        ) from error
    except OSError as error:
        where = error.filename or place
        if error.errno == errno.ENOSPC:
            raise ForkError(f"the disk is full at {where}: free some space and try again") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ForkError(f"{where} cannot be written: {advice}") from error
        raise ForkError(f"{where}: {error.strerror or error}") from error
