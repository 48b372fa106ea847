"""Which names a branch changes in headers, so that whoever includes one and names none of them needs no compiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fork.weave.cpp import code_of
from fork.weave.definitions import concerned

WORD = re.compile(r"[A-Za-z_]\w*")


def changed_names(
    headers: Mapping[str, tuple[str, str]], including: Iterable[str], read: Callable[[str], str | None]
) -> set[str] | None:
    """What the declarations that differ declare; None where the change can concern code that does not name it.

    `headers` has the text before and after of each; `including`, who includes them, also by other headers.
    """
    names: set[str] = set()
    for before, after in [*headers.values()] * len(headers):  # as often as a name can pass from one to another
        found = concerned(before, after, names)
        if found is None:
            return None
        names = found
    passed_on = (path for path in including if path.endswith((".h", ".hpp", ".cuh")) and path not in headers)
    if any(names & words(read(path) or "") for path in passed_on):
        return None  # by a macro or an inline function of that header
    return names


def words(text: str) -> set[str]:
    return set(WORD.findall(code_of(text)))


def generated(names: Iterable[str], files: Sequence[Path]) -> bool:
    """Whether code that PyTorch's generators make of these files may have a name, or join one of its parts."""
    made = {word for file in files for word in WORD.findall(file.read_text())}
    return any(part in made for name in names for part in _parts(name))


def _parts(name: str) -> set[str]:
    """`THPVariable_add` can be made of `add`, and `add_stub` too."""
    cuts = [at for at, sign in enumerate(name) if sign == "_"]
    found = {name[at + 1 :] for at in cuts} | {name[:at] for at in cuts}
    return {name, *(part for part in found if part.strip("_"))}
