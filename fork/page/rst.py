"""reStructuredText as HTML, by docutils, with formulas as MathML."""

from __future__ import annotations

from collections.abc import Mapping

from docutils import nodes
from docutils.core import publish_doctree, publish_from_doctree
from markupsafe import Markup, escape

from fork.page.markdown import Text, leads

SETTINGS = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "embed_stylesheet": False,
    "stylesheet_path": "",
    "math_output": "MathML",
    "syntax_highlight": "none",
    "report_level": 3,
    "halt_level": 5,
    "warning_stream": False,
    "doctitle_xform": False,
}


def render(text: str, prefix: str, links: Mapping[str, str], shift: int = 1, folder: str = "") -> Text:
    """A text as HTML that loads nothing; see `markdown.render`."""
    settings = SETTINGS | {"id_prefix": prefix, "initial_header_level": 1 + shift}
    tree = publish_doctree(text, settings_overrides=settings)
    _show_what_is_unknown(tree)
    for link in [node for node in tree.findall(nodes.reference) if "refuri" in node]:
        address = leads(link["refuri"], links, folder)
        link.parent.replace(link, nodes.reference("", "", *link.children, refuri=address) if address else link.children)
    headings = [
        (_depth(section), section["ids"][0], Markup(escape(section[0].astext())))
        for section in tree.findall(nodes.section)
    ]
    page = publish_from_doctree(tree, writer="html5", settings_overrides=settings | {"output_encoding": "unicode"})
    return Text(Markup(page.partition("<main>")[2].partition("</main>")[0].strip()), headings)


def _show_what_is_unknown(tree: nodes.document) -> None:
    """Sphinx's own directives and roles become code, as they were written; so does an image, which would be loaded."""
    for section in [node for node in tree.findall(nodes.section) if "system-messages" in node["classes"]]:
        section.parent.remove(section)
    tree.transform_messages.clear()
    for message in list(tree.findall(nodes.system_message)):
        blocks = [part for part in message.children if isinstance(part, nodes.literal_block)]
        message.parent.replace(message, blocks)
    for role in list(tree.findall(nodes.problematic)):
        role.parent.replace(role, nodes.literal("", role.astext()))
    for image in list(tree.findall(nodes.image)):
        image.parent.replace(image, nodes.literal("", image["uri"]))


def _depth(section: nodes.Node) -> int:
    return 0 if section.parent is None else 1 + _depth(section.parent)
