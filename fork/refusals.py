"""Why a change of PyTorch's own code is not built for a wheel: each reason's name and sentence.

The guide's list is made of these (`python -m bench.report`). What stands in braces is filled in.
"""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """One reason."""

    OTHER_LINES = (
        "{place} is changed by the branch, and the wheel's release has other lines there: "
        "rebase the branch onto the release's tag"
    )
    OTHER_ENTRY = (
        "{place} changes an entry that torch {version} has otherwise: rebase the branch onto the release's tag"
    )
    KNOWN_ENTRY = "{place} adds {name}, which torch {version} has: give it another name"
    KNOWN_NODE = (
        "{path} adds an operator whose node {node} would take the place of the base's: "
        "give the operator a name of its own"
    )
    ARGUMENTS = "{path} gives {name} other arguments, and code of the base passes the old ones: add an overload instead"
    TAGS = "{path} has other tags, and the base's code has their numbers: give operators tags that there are"
    NO_AUTOGRAD_KERNEL = (
        "{place} changes {name}, whose autograd kernel PyTorch does not generate: what the entry says would not run"
    )
    GENERATED = (
        "{path}, which PyTorch's build generates, {why}, where something changes that code can use without its name, "
        "and {cause}"
    )
    LATE_LIBRARY = "{path} is of {library}, which is loaded after the fork's libraries and takes their place"
    NO_NVCC = (
        "{path} changes code of the GPU, which nvcc has to compile, and CUDA is {cuda}: "
        "`--cuda off` leaves the GPU as it is"
    )
    NO_NVCC_FOR_USER = "{path} {why}, and CUDA is {cuda}"
    TYPE_OF_GPU = "{path} {why}, where more than functions differs: leave out --cuda off"
    LIST_OF_A_STACK = (
        "{path} adds entries to {name}, and whoever uses that list has to be compiled: "
        "build the branch from a checkout, by --checkout"
    )
    NO_LONGER_REGISTERED = "{place} no longer has {what}, which the base has registered"
    REGISTERED_ONCE = "{place} `{head}` can be registered only once, and {why}"
    TOO_MANY = "{what} have to be compiled, about {minutes} minutes of a core's time: `--many {count}` allows it"

    NOT_COMPILED = "{path} {why} and does not compile for the wheel: {error}"
    HIDDEN = (
        "{what} is hidden in {library} and cannot become a jump there, so {user} would still use the base's: "
        "give it another name"
    )
    HIDDEN_VARIABLE = (
        "{what} is a variable that is hidden in {library}, so {user} would still use the base's: "
        "change functions that it leads to instead, or give it another name"
    )
    HIDDEN_ELSEWHERE = "{path} uses `{name}`, which the base hides so that nothing else reaches it"
    BOUND = "{what} is bound to the base's own definition inside its library"
    LAUNCHED = "{what} would be launched by the base's code too: take nvcc 12.8"
    NODE_MADE_ELSEWHERE = "{node} is also made by the base's {user}, which is not compiled again"
    STARTS = "{path} calls `{name}` when the process starts, which the base has done already"
    BUILT_AT_START = "{what} is built when the process starts, which the base has done already"

    def of(self, **words: object) -> str:
        """The sentence with these words."""
        return str(self.value).format(**words)
