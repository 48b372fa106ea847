"""What a commit's message says: its description, and to which PR of several commits it belongs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fork.series import PullRequest, Series

PART = re.compile(r"^Part-of: (?P<pr>\w[\w-]*)\.(?P<commit>\w[\w-]*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """A commit's own description, and where its PR has several commits, both names; `whole` describes that PR.

    Only the first commit of a PR carries the description of the whole.
    """

    description: str
    pr: str = ""
    commit: str = ""
    whole: str = ""

    @classmethod
    def of(cls, text: str) -> Message:
        """The inverse of `str`. Trailers beside `Part-of`, which git can add, stay in the commit's own description."""
        found = PART.search(text)
        before = text[: found.start()].strip("\n") if found else ""
        if not found or not before:
            return cls(text)
        trailers, _, whole = f"\n{text[found.end() :]}".partition("\n\n")
        description = "\n\n".join(filter(None, (before, trailers.strip("\n")))) + "\n"
        return cls(description, found["pr"], found["commit"], whole)

    @property
    def title(self) -> str:
        return self.description.partition("\n")[0]

    def __str__(self) -> str:
        part = f"Part-of: {self.pr}.{self.commit}\n" if self.pr else ""
        return "\n".join(filter(None, (self.description, part, self.whole)))


def messages(series: Series, pr: PullRequest) -> list[Message]:
    """Those of a PR's commits, in order."""
    if not pr.split:
        return [Message(series.description(pr))]
    whole = series.description(pr) if series.said(pr) is not None else ""
    found = [Message(series.description(one), pr.name, one.name.partition(".")[2]) for one in pr.commits]
    return [replace(found[0], whole=whole), *found[1:]]
