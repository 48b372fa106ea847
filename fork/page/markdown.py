"""The Markdown of a PR's description as HTML: headings, lists, tables, code, links, emphasis."""

from __future__ import annotations

import re
from html import escape

ITEM = re.compile(r"(\s*)([-*]|\d+\.) +(.*)")
INLINE = (
    (re.compile(r"\*\*(.+?)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*"), r"<em>\1</em>"),
    (re.compile(r"\[([^\]]+)\]\(((?:https?://|#)[^)\s]*)\)"), r'<a href="\2">\1</a>'),
    (re.compile(r"\[([^\]]+)\]\([^)\s]*\)"), r"\1"),
)


def html(text: str) -> str:
    """The text block by block; a heading `#` becomes h2, so that the page keeps its h1."""
    out: list[str] = []
    lines = text.split("\n")
    while lines:
        line = lines[0]
        if not line.strip():
            lines.pop(0)
        elif line.startswith("```"):
            lines.pop(0)
            code = _take(lines, lambda n: not lines[n].startswith("```"))
            del lines[:1]
            out.append(f"<pre><code>{escape(chr(10).join(code))}</code></pre>")
        elif heading := re.match(r"(#+) +(.*)", line):
            lines.pop(0)
            level = min(len(heading[1]) + 1, 6)
            out.append(f"<h{level}>{inline(heading[2])}</h{level}>")
        elif line.startswith("|"):
            out.append(_table(_take(lines, lambda n: lines[n].startswith("|"))))
        elif ITEM.match(line):
            out.append(_list(_take(lines, lambda n: _in_list(lines, n))))
        else:
            paragraph = _take(lines, lambda n: _in_paragraph(lines[n]))
            out.append(f"<p>{inline(' '.join(paragraph))}</p>")
    return "\n".join(out)


def inline(text: str) -> str:
    """Code stays as it is; the rest gets its emphasis and links."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"<code>{escape(part[1:-1])}</code>" if part.startswith("`") and len(part) > 2 else _plain(part)
        for part in parts
    )


def _plain(text: str) -> str:
    text = escape(text, quote=False)
    for pattern, replacement in INLINE:
        text = pattern.sub(replacement, text)
    return text


def _take(lines: list[str], wanted: object) -> list[str]:
    assert callable(wanted)
    count = 0
    while count < len(lines) and wanted(count):
        count += 1
    taken = lines[: max(count, 0)]
    del lines[: len(taken)]
    return taken


def _in_paragraph(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("#", "|", "```")) and not ITEM.match(line)


def _in_list(lines: list[str], n: int) -> bool:
    return bool(ITEM.match(lines[n])) or bool(lines[n].startswith("  ") and lines[n].strip())


def _list(lines: list[str]) -> str:
    """Items by their indentation; a line that begins none continues the one above."""
    items: list[tuple[int, str, list[str]]] = []
    for line in lines:
        match = ITEM.match(line)
        if match:
            items.append((len(match[1]), match[2], [match[3]]))
        else:
            items[-1][2].append(line.strip())
    out: list[str] = []
    open_at: list[tuple[int, str]] = []
    for indent, sign, words in items:
        tag = "ol" if sign[0].isdigit() else "ul"
        while open_at and open_at[-1][0] > indent:
            out.append(f"</li></{open_at.pop()[1]}>")
        if open_at and open_at[-1][0] == indent:
            out.append("</li>")
        else:
            out.append(f"<{tag}>")
            open_at.append((indent, tag))
        out.append(f"<li>{inline(' '.join(words))}")
    out += [f"</li></{tag}>" for _, tag in reversed(open_at)]
    return "".join(out)


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    body = [row for row in rows if not all(re.fullmatch(r":?-*:?", cell) for cell in row)]
    cells = [
        "".join(f"<{tag}>{inline(cell)}</{tag}>" for cell in row)
        for row, tag in zip(body, ["th"] + ["td"] * len(body), strict=False)
    ]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
