"""Operators that a branch defines otherwise: with other tags or defaults of arguments, or as another's variant."""

from __future__ import annotations

import re

from fork.errors import ForkError
from fork.refusals import Refusal
from fork.upstream import NATIVE_FUNCTIONS

SCHEMAS = "aten/src/ATen/RegisterSchema.cpp"
# The registration of an operator: its name, its overload, and which list of tags it has.
DEFINED = re.compile(r'^ *m\.def\("((\w+)(?:\.(\w+))?\(.*?)"(?:, (?:tags_(\d+)|(\{.*?\})))?\);+$', re.MULTILINE)
TAGS = re.compile(r"tags_(\d+) = (\{.*?\});")
DEFAULT = re.compile(r"=(?:\[[^]]*\]|\"[^\"]*\"|[^,)\s]+)")


def redefinitions(before: str, after: str) -> str:
    """The source that makes the operators of one RegisterSchema.cpp those of another; nothing where they are alike."""
    old, again, new = _schemas(before), "", ""
    for (name, overload), (schema, tags) in _schemas(after).items():
        known = old.get((name, overload))
        if known and DEFAULT.sub("", known[0]) != DEFAULT.sub("", schema):
            raise ForkError(Refusal.ARGUMENTS.of(path=NATIVE_FUNCTIONS, name=schema.partition("(")[0]))
        if known and known != (schema, tags):
            again += f'AGAIN({name}, "{overload}", "{schema}", ({tags}))\n'
        elif not known:
            new += f'  m.def("{schema}", {tags});\n'
    return again + (f"TORCH_LIBRARY_FRAGMENT(aten, m) {{\n{new}}}\n" if new else "")


def _schemas(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Of each operator, by its name and overload, the whole schema, and the tags as C++ lists them."""
    tags = dict(TAGS.findall(text))
    lists = ((one, one[5] or tags.get(one[4] or "", "{}")) for one in DEFINED.finditer(text))
    return {(one[2], one[3] or ""): (one[1], own) for one, own in lists}
