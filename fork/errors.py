"""The tool's one kind of error: a sentence for the user, never a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path


class ForkError(Exception):
    """Says in one sentence what is wrong, where, and what to do about it."""


class NothingToBuild(ForkError):
    """A branch or a state changes nothing that a wheel of torch holds."""


SAID = 12  # reasons are told at most
# Above several reasons why a branch is refused.
UNSEEN = "what the branch changes would not run, or not everywhere:"
UNCOMPILED = "what the branch changes does not compile for the wheel:"


def refuse_all(problems: Sequence[str], head: str, alone: str = "{}") -> None:
    """One error that names all problems, if there are any: several below a head, and one as `alone` says."""
    if problems := list(dict.fromkeys(problems)):
        more = [f"and {len(problems) - SAID} more"] if problems[SAID:] else []
        several = "\n  ".join([head, *problems[:SAID], *more])
        raise ForkError(several if problems[1:] else alone.replace("{}", problems[0]))


@contextlib.contextmanager
def told_plainly(place: Path, advice: str = "choose a folder that is yours") -> Iterator[None]:
    """Turns what the file system refuses into a ForkError; `advice` says what to do where nothing may be written."""
    try:
        yield
    except BrokenPipeError:  # nothing was refused: who read the output has gone
        raise
    except OSError as error:
        # The library's error of a whole tree has source, target and reason of each file.
        of_tree = isinstance(error, shutil.Error) and isinstance(error.args[0], list)
        where, why = error.filename or place, error.args[0][0][2] if of_tree else error.strerror or error
        if error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error):
            raise ForkError(f"the disk is full at {where}: free some space and try again") from error
        if error.errno == errno.EACCES and os.path.exists(where) and not os.access(where, os.R_OK):
            raise ForkError(f"{where} cannot be read: `chmod u+r` it, or ask its owner to") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ForkError(f"{where} cannot be written: {advice}") from error
        raise ForkError(f"{where}: {why}") from error
