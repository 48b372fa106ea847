"""`fork show --html`: a PR, or the whole stack, as one page that needs nothing else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from pathlib import Path, PurePosixPath

from fork.engine import base as bases
from fork.engine.base import Base
from fork.page import markdown
from fork.series import PullRequest, Series
from fork.verify.prefix import results
from fork.weave import weave

CONTEXT = 4
WORDS = {
    ".py": "and as assert class def del elif else except False finally for from if import in is lambda "
    "None not or pass raise return True try while with yield",
    ".cpp": "auto bool break case char class const constexpr continue default do double else enum false "
    "float for if inline int int64_t long namespace new nullptr operator private public return sizeof "
    "static std struct switch template this true typedef typename union unsigned using void while "
    "__device__ __global__ __host__ __shared__",
    ".yaml": "true false null",
}
COMMENT = {".py": r"\#.*", ".yaml": r"\#.*", ".bzl": r"\#.*", ".cpp": r"//.*|/\*.*?\*/|^\s*\#\w+"}
ALIKE = {".h": ".cpp", ".cu": ".cpp", ".cuh": ".cpp", ".bzl": ".py"}


def page(series: Series, pr: PullRequest | None) -> str:
    """One PR, or with None all of them, in order, under a picture of the stack."""
    base = bases.installed()
    shown = [pr] if pr else list(series.prs)
    title = pr.title if pr else "The stack"
    sections = "\n".join(_section(series, base, one, alone=pr is not None) for one in shown)
    links = "".join(f'<a href="#{p.name}">{n}. {escape(p.name)}</a>' for n, p in enumerate(shown, 1))
    css = (Path(__file__).parent / "page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{css}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="soft">{len(series.prs)} pull requests against PyTorch; '
        f"differences from torch {escape(base.version)}</p>\n"
        f"{_picture(series, pr)}\n{'' if pr else f'<nav>{links}</nav>'}\n{sections}\n</body></html>\n"
    )


def _section(series: Series, base: Base, pr: PullRequest, alone: bool) -> str:
    place = series.prs.index(pr) + 1
    _, _, text = series.description(pr).partition("\n")
    head = f'<h2 id="{pr.name}">{"Description" if alone else f"{place}. {escape(pr.title)}"}</h2>'
    body = markdown.html(text.replace("\n## ", "\n### ").replace("\n# ", "\n## "))
    files = "\n".join(_file(series, base, pr, path) for path in pr.paths)
    return f"{head}\n{body}\n<h3>Tests of this state</h3>\n{_tests(series, pr)}\n<h3>Files</h3>\n{files}"


def _tests(series: Series, pr: PullRequest) -> str:
    found = results(series, series.root / "build", pr)
    if found is None:
        return '<p class="soft">Not run here yet: <code>python -m fork check</code> runs them.</p>'
    rows = "".join(
        f"<tr><td><code>{escape(run.command)}</code></td>"
        f'<td class="{"good" if run.passed else "bad"}">{escape(run.said)}</td>'
        f"<td>{run.seconds:.0f} s</td></tr>"
        for run in found.runs
    )
    return f"<p>On torch {escape(found.torch)}:</p><table>{rows}</table>"


def _file(series: Series, base: Base, pr: PullRequest, path: str) -> str:
    before, after, note = _sides(series, base, pr, path)
    lines = list(_changes(before, after))
    added, removed = (sum(kind == sign for kind, *_ in lines) for sign in "+-")
    colour = _painter(path)
    rows = "".join(_row(kind, old, new, text, colour) for kind, old, new, text in lines)
    counts = f'<span><b class="good">+{added}</b> <b class="bad">-{removed}</b></span>'
    kind = {"+": "", "~": "changed by this PR; ", "-": ""}[series.mark(pr, path)]
    return (
        f"<details{' open' if len(lines) < 400 else ''}><summary>{counts}<code>{escape(path)}</code>"
        f"<small>{escape(kind + series.where(pr, path) + note)}</small></summary>"
        f'<div class="diff"><table>{rows}</table></div></details>'
    )


def _sides(series: Series, base: Base, pr: PullRequest, path: str) -> tuple[str, str, str]:
    """The file as it is before this PR and after it, woven into the base where the base has it."""
    place = series.prs.index(pr)
    earlier = series.state(series.prs[place - 1]).get(path) if place else None
    now = series.state(pr).get(path)
    anchor = series.anchors.get(path)
    shipped = base.wheel_path(path) if anchor else None
    plain = (base.site / shipped).read_text() if shipped else ""
    note = "; torch's wheel has no such file, so only what is added shows" if anchor and not shipped else ""

    def side(file: Path | None) -> str:
        if file is None:
            return plain
        return weave(path, plain, file.read_text(), anchor) if anchor and shipped else file.read_text()

    return side(earlier), side(now), note


def _changes(before: str, after: str) -> Iterator[tuple[str, int, int, str]]:
    """Kind (space, +, -, or @ for a gap), line numbers and text, with a little context."""
    one, two = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    if len(one) > 2000:
        matcher = difflib.SequenceMatcher(None, one, two, autojunk=True)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        yield "@", group[0][1], group[0][3], f"line {group[0][3] + 1}"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from ((" ", i + 1, i + 1 + j1 - i1, one[i]) for i in range(i1, i2))
            else:
                yield from (("-", i + 1, 0, one[i]) for i in range(i1, i2))
                yield from (("+", 0, j + 1, two[j]) for j in range(j1, j2))


def _row(kind: str, old: int, new: int, text: str, colour: Callable[[str], str]) -> str:
    if kind == "@":
        return f'<tr class="gap"><td class="n"></td><td class="n"></td><td>{escape(text)}</td></tr>'
    name = {"+": "add", "-": "del", " ": ""}[kind]
    return (
        f'<tr class="{name}"><td class="n">{old or ""}</td><td class="n">{new or ""}</td>'
        f"<td>{kind}{colour(text)}</td></tr>"
    )


@cache
def _pattern(suffix: str) -> re.Pattern[str] | None:
    kind = ALIKE.get(suffix, suffix)
    if kind not in COMMENT:
        return None
    words = "|".join(WORDS[kind].split())
    strings = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\''
    return re.compile(
        rf"(?P<c>{COMMENT[kind]})|(?P<s>{strings})|(?P<w>\b(?:{words})\b|^-? *\w+(?=:\s))|(?P<d>\b\d[\w.]*\b)"
        if kind == ".yaml"
        else rf"(?P<s>{strings})|(?P<c>{COMMENT[kind]})|(?P<w>\b(?:{words})\b)|(?P<d>\b\d[\w.]*\b)"
    )


def _painter(path: str) -> Callable[[str], str]:
    """Gives a line of code its colours, by what its words are."""
    pattern = _pattern(PurePosixPath(path).suffix)

    def paint(line: str) -> str:
        out, end = [], 0
        for found in pattern.finditer(line) if pattern else ():
            out += [escape(line[end : found.start()])]
            out += [f'<span class="{found.lastgroup}">{escape(found[0])}</span>']
            end = found.end()
        return "".join([*out, escape(line[end:])])

    return paint


def _picture(series: Series, pr: PullRequest | None) -> str:
    """The PRs as boxes on one another, the oldest at the bottom, standing on PyTorch."""
    boxes = [(p.name, p.title, f"{len(p.introduces)} new, {len(p.changes)} changed") for p in series.prs]
    boxes.insert(0, ("pytorch", "upstream's main, or a release", ""))
    height = 58
    parts = []
    for n, (name, title, counts) in enumerate(reversed(boxes)):
        y = n * height + 4
        chosen = pr is not None and name == pr.name
        edge = ' stroke-dasharray="4"' if name == "pytorch" else ""
        fill = "#0969da" if chosen else "var(--wash)"
        ink = "#ffffff" if chosen else "var(--ink)"
        parts.append(
            f'<rect x="4" y="{y}" width="892" height="{height - 16}" rx="7" fill="{fill}" '
            f'stroke="var(--line)"{edge}/>'
            f'<text x="20" y="{y + 26}" fill="{ink}" font-weight="600">{escape(name)}</text>'
            f'<text x="170" y="{y + 26}" fill="{ink}">{escape(title)}</text>'
            f'<text x="880" y="{y + 26}" fill="{ink}" text-anchor="end" font-size="12">{counts}</text>'
        )
        if n:
            parts.append(f'<path d="M60 {y - 14} v12 m-5 -5 l5 5 l5 -5" stroke="var(--soft)" fill="none"/>')
    return (
        f'<svg viewBox="0 0 900 {len(boxes) * height}" width="900" role="img" '
        f'aria-label="the stack, oldest at the bottom" font-family="system-ui, sans-serif" font-size="14">'
        f"{''.join(parts)}</svg>"
    )
