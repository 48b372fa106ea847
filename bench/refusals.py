"""`python -m bench.refusals`: writes the reasons why a change is not built into the guide."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bench.documents import fill, markdown_table
from fork.arguments import Parser, status
from fork.refusals import Refusal

GUIDE = Path(__file__).resolve().parents[1] / "guide/changed_sources.md"


def written(text: str) -> str:
    """The guide with each reason, and whether a plan tells it already."""
    reasons = list(Refusal)
    planned = reasons[: reasons.index(Refusal.TOO_MANY) + 1]
    rows = [["plan" if one in planned else "build", _shown(str(one.value))] for one in reasons]
    return fill(text, {"refusals": markdown_table(("told by", "reason"), rows)}, GUIDE.name)


def _shown(sentence: str) -> str:
    """A reason with its blanks as words in italics, or of a command in capitals."""
    sentence = re.sub(r"(?<=--many )\{(\w+)\}", lambda blank: blank[1].upper(), sentence)
    return re.sub(r"`?\{(\w+)\}`?", r"*\1*", sentence)


def main() -> int:
    Parser(prog="python -m bench.refusals", description=(__doc__ or "").partition("\n")[0]).parse_args()
    GUIDE.write_text(written(GUIDE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(status("bench.refusals", main))
