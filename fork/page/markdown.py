"""Markdown as HTML, by markdown-it: headings with ids, tables, code in colour, and formulas as MathML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from posixpath import join, normpath

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup
from math_core import LatexToMathML
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from fork.page.code import coloured, lexer_of

# A formula that is not LaTeX shows as it was written, with the reason.
MATHEMATICS = LatexToMathML(continue_on_error=True)


@dataclass(frozen=True)
class Text:
    """A text as HTML, and its headings of the second level: id and words."""

    html: Markup
    headings: Sequence[tuple[str, Markup]]


def render(text: str, prefix: str, links: Mapping[str, str], shift: int = 1, folder: str = "") -> Text:
    """A text as HTML that loads nothing.

    Each id begins with the prefix. A heading goes `shift` levels down, since the page has headings above it. `links`
    maps the name of a file, or any address, to its place on the page: links to it and code that names it lead there.
    Links are relative to `folder`; a link to a file that is not on the page is plain words.
    """
    parser = _parser()
    tokens = parser.parse(text)
    ids = [token.attrGet("id") for token in tokens if token.type == "heading_open"]
    links = {**links, **{f"#{id}": f"#{prefix}{id}" for id in ids}}
    headings = []
    for n, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", f"{prefix}{token.attrGet('id')}")
            if token.tag == "h2":
                words = Markup(parser.renderer.render(tokens[n + 1].children or [], parser.options, {}))
                headings.append((str(token.attrGet("id")), words))
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + shift, 6)}"
        if token.type == "fence" and token.info.strip() == "math":
            token.type = "math_block"
        if token.type == "inline":
            token.children = _linked(token.children or [], links, folder)
    return Text(Markup(parser.renderer.render(tokens, parser.options, {})), headings)


def _parser() -> MarkdownIt:
    # Raw HTML stays text, and an image becomes a link: a page loads nothing.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    dollarmath_plugin(parser, allow_labels=False, allow_space=False, allow_digits=False, renderer=_formula)
    anchors_plugin(parser, max_level=6)  # with the ids that GitHub gives
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


def _formula(content: str, options: Mapping[str, bool]) -> str:
    return MATHEMATICS.convert_with_local_state(content.strip(), displaystyle=options["display_mode"])


def _fence(renderer: RendererHTML, tokens: Sequence[Token], n: int, options: OptionsDict, env: EnvType) -> str:
    lines = coloured(lexer_of(language=tokens[n].info.strip().partition(" ")[0]), tokens[n].content)
    return "<pre><code>" + "\n".join(lines) + "</code></pre>\n"


def _linked(tokens: Sequence[Token], links: Mapping[str, str], folder: str) -> list[Token]:
    """The same words with their links led to where they go on this page, and to nowhere where it has no such place."""
    found, depth = [], 0
    for token in tokens:
        if token.type == "link_open":
            address = str(token.attrGet("href"))
            file = normpath(join(folder, address.partition("#")[0]))
            outside = address if re.match(r"https?://", address) else None
            place = links.get(address) or outside or links.get(file)
            token.attrs = {"href": place} if place else {}
            depth += 1
        elif token.type == "link_close":
            depth -= 1
        if token.type == "code_inline" and not depth and token.content in links:
            opened = Token("link_open", "a", 1, attrs={"href": links[token.content]})
            found += [opened, token, Token("link_close", "a", -1)]
        else:
            found.append(token)
    return found
