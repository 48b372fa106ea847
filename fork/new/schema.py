"""Reads the schema of a new operator with PyTorch's own parser, and says in one sentence what cannot be served."""

from __future__ import annotations

import ast
import keyword
import re
from dataclasses import dataclass
from typing import Any

from pygments.lexers import get_lexer_by_name
from torchgen import local
from torchgen.api import native
from torchgen.model import FunctionSchema

from fork.errors import ForkError

EXAMPLE = "softsign_mul(Tensor a, Tensor b, float alpha=1.0) -> Tensor"
# An entry of native_functions.yaml may be pasted as it stands there.
SHAPE = re.compile(
    r"\s*(-?\s*func:)?\s*(?P<name>[^\s(]*)\s*\((?P<arguments>.*)\)\s*->\s*(?P<returns>\S.*?)\s*$", re.DOTALL
)
# A value other than the default for each type that a sample can have.
SAMPLES = {"int": "2", "SymInt": "2", "float": "1.5", "Scalar": "1.5", "bool": "True", "str": '"text"'}
NUMBERS = ("int", "float", "Scalar")
# Python's types of the values that an argument may have as its default.
VALUES = {"int": "int", "SymInt": "int", "float": "float int", "Scalar": "float int bool", "bool": "bool", "str": "str"}
# Words of C++ that are names elsewhere.
SOMETIMES = ("final", "module", "naked", "override", "restrict")
# Names that PyTorch's generators or the written code give to something else.
TAKEN = {"grad", "grads", "result", "output_mask", "grad_input_mask", "iter", "at", "torch", "np", "out", "name"}


@dataclass(frozen=True)
class Argument:
    """One argument; `kind` is tensor, optional, list, number or other, and `default` is Python's text of it.

    `symbolic` is the declaration of a kernel that takes symbolic integers as they are.
    """

    name: str
    kind: str
    type: str
    declaration: str
    symbolic: str
    default: str | None
    keyword_only: bool
    sample: str

    @property
    def python(self) -> str:
        return "input" if self.name == "self" else self.name

    @property
    def cpp_type(self) -> str:
        return self.declaration.rpartition(" ")[0]


@dataclass(frozen=True)
class Operator:
    """A schema that a first stack can be written for; `title` is what its source files are called."""

    name: str
    title: str
    schema: str
    arguments: tuple[Argument, ...]
    outputs: tuple[str | None, ...]
    cpp_return: str

    def of(self, *kinds: str) -> list[Argument]:
        return [argument for argument in self.arguments if argument.kind in kinds]

    @property
    def symbolic(self) -> bool:
        """Whether an argument may be a symbolic integer, for which a kernel has another signature."""
        return any(argument.declaration != argument.symbolic for argument in self.arguments)

    @property
    def named(self) -> bool:
        return len(self.outputs) > 1 and all(self.outputs)


def read(schema: str, explicit: bool) -> Operator:
    """The operator of a schema such as `softsign_mul(Tensor a, Tensor b) -> Tensor`."""
    func = _parse(schema)
    name = str(func.name)
    _refuse_name(name, func)
    with local.parametrize(use_const_ref_for_mutable_tensors=False, use_ilistref_for_tensor_lists=False):
        declared, symbolic = (
            {one.name: _without_at(one.decl()).partition("=")[0] for one in native.arguments(func, symint=symint)}
            for symint in (False, True)
        )
        cpp_return = _without_at(native.returns_type(func.returns, symint=False).cpp_type())
    only = {argument.name for argument in func.arguments.flat_kwarg_only}
    arguments = []
    for a in func.arguments.flat_all:
        kind, sample = _kind(name, a)
        default, cpp = _default(name, a, sample), (declared[a.name], symbolic[a.name])
        arguments.append(Argument(a.name, kind, str(a.type), *cpp, default, a.name in only, sample))
    outputs = tuple(result.name for result in func.returns)
    # As PyTorch's source files are named: softsign_mul is SoftsignMul.
    title = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    operator = Operator(name, title, str(func), tuple(arguments), outputs, cpp_return)
    _refuse_arguments(operator, explicit)
    _refuse_outputs(operator, func)
    return operator


def _parse(schema: str) -> FunctionSchema:
    found = SHAPE.match(schema)
    if not found:
        raise ForkError(f"{schema!r} is not a schema: write NAME(TYPE ARGUMENT, ...) -> TYPE, such as {EXAMPLE!r}")
    name = found["name"]
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise ForkError(f"{schema!r}: {name!r} is not a name: use lower case letters, digits and underscores")
    text = _spaced(f"{name}({found['arguments']}) -> {found['returns']}")
    try:
        return FunctionSchema.parse(text)
    except (AssertionError, RuntimeError, ValueError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if " != " in reason:
            reason = f"PyTorch would write it as {reason.partition(' != ')[0]!r}"
        raise ForkError(f"{schema!r}: {reason}: write it as in native_functions.yaml, such as {EXAMPLE!r}") from error


def _spaced(schema: str) -> str:
    """One space after each comma, and none in brackets or beside a =: so torchgen tells arguments from items."""
    closed = re.sub(r"\[[^\]]*\]", lambda items: "".join(items[0].split()), " ".join(schema.split()))
    closed = re.sub(r"\s*=\s*", "=", closed).replace("( ", "(").replace(" )", ")")
    return re.sub(r"\s*,\s*(?![^\[]*\])", ", ", closed)


def _refuse_name(name: str, func: FunctionSchema) -> None:
    base, _, overload = name.partition(".")
    if any(argument.is_write for argument in func.arguments.flat_all):
        raise ForkError(
            f"{name} writes into an argument: begin with the operator that returns a new tensor; in-place and out= "
            "variants are entries beside it"
        )
    if base.endswith("_"):
        raise ForkError(f"{name} ends with an underscore, which says in-place: write the name without it")
    if overload:
        raise ForkError(f"{name} has an overload name: begin with {base} alone; an overload is an entry beside it")
    if base.startswith("_"):
        raise ForkError(f"{name} is private, so it has no place in torch: write the name without the first underscore")
    if base != base.lower():
        raise ForkError(f"{name} has upper case letters: PyTorch's operators are lower case, {base.lower()}")
    if _is_word(base):
        raise ForkError(f"{name} is a word of Python or C++: choose another name")


def _kind(name: str, argument: Any) -> tuple[str, str]:
    """What the written code does with an argument, and a value of it for the samples."""
    text = str(argument.type)
    if argument.annotation is not None:
        raise ForkError(f"{name} returns a view of {argument.name}: a first operator returns new tensors only")
    plain = {"Tensor": "tensor", "Tensor?": "optional", "Tensor[]": "list"}
    if text in plain:
        return plain[text], "make_arg(shape)" if text != "Tensor[]" else "[make_arg(shape), make_arg(shape)]"
    if text in NUMBERS:
        return "number", SAMPLES[text]
    found = re.fullmatch(r"(\w+)(?:\[(\d*)\])?(\?)?", text)
    # Python's parser of arguments takes lists of these alone, and PyTorch's generators say so much later.
    listed = found is not None and found[2] is not None
    if not found or found[1] not in (("int", "SymInt", "float") if listed else SAMPLES):
        raise ForkError(
            f"{name}: no sample value is known for {argument.name} of type {text}: leave it out, run the operator, and "
            "add it to its entry then"
        )
    return "other", "[" + ", ".join([SAMPLES[found[1]]] * int(found[2] or 1)) + "]" if listed else SAMPLES[found[1]]


def _default(name: str, argument: Any, sample: str) -> str | None:
    """The default in Python; torchgen keeps the text and leaves what is wrong with it to the compiler."""
    default: str | None = argument.default
    text = str(argument.type)
    if default is None or default == "None" and text.endswith("?"):
        return default
    base = text.rstrip("?").partition("[")[0]
    if default.lstrip("-") in ("inf", "nan"):
        raise ForkError(
            f"{name}: {argument.name} has the default {default}, which PyTorch's generators would write into C++ as it "
            f"stands: write `{base}? {argument.name}=None`, and let None mean it"
        )
    try:
        value = ast.literal_eval(default)
    except (SyntaxError, ValueError):
        value = None
    items = value if isinstance(value, list) and "[" in text else [value]
    if any(type(item).__name__ not in VALUES.get(base, "").split() for item in items):
        write = "None" if text.endswith("?") else f"one such as {sample}"
        hint = "leave it out" if base == "Tensor" and "?" not in text else f"write {write}"
        raise ForkError(f"{name}: {default} is not a value of {argument.name}, which is {text}: {hint}")
    return default


def _refuse_arguments(operator: Operator, explicit: bool) -> None:
    # In Python self is called input.
    names = [argument.python for argument in operator.arguments]
    for name in names:
        if names.count(name) > 1:
            called = "; in Python self is called input" if name == "input" else ""
            raise ForkError(f"{operator.name} has the argument {name} twice: rename one{called}")
        if _is_word(name) or name in TAKEN or name == operator.name or name.endswith("_"):
            raise ForkError(f"{operator.name}: the argument {name} has a name that means something else: rename it")
    lists = operator.of("list")
    if lists and lists != [operator.arguments[0]]:
        raise ForkError(
            f"{operator.name}: {lists[-1].name} is a list of tensors behind the first argument, where PyTorch's "
            "gradient tests do not look for its tensors: write one list, and write it first"
        )
    first = operator.arguments[:1]
    if not first or first[0].kind not in ("tensor", "list") or first[0].keyword_only:
        raise ForkError(
            f"{operator.name}: its first argument is not a Tensor: the samples of an OpInfo begin with a tensor, so "
            f"write it first, as in {EXAMPLE!r}"
        )
    for argument in operator.arguments:
        if argument.keyword_only and argument.kind in ("tensor", "optional", "list"):
            raise ForkError(
                f"{operator.name}: {argument.name} is a tensor behind the *, where TorchScript's test would write its "
                "digits into a program: write it before the *"
            )
    # Behind the * too: C++ has no keywords.
    for before, after in zip(operator.arguments, operator.arguments[1:]):
        if before.default is not None and after.default is None:
            raise ForkError(
                f"{operator.name}: {after.name} has no default, and {before.name} before it has one: give {after.name} "
                f"one too, or write it before {before.name}"
            )
    if explicit and lists:
        raise ForkError(
            f"{operator.name}: {lists[0].name} is a list of tensors, and the kernel that --explicit "
            "writes goes over a fixed number of them: leave --explicit out"
        )


def _refuse_outputs(operator: Operator, func: FunctionSchema) -> None:
    if not func.returns:
        raise ForkError(f"{operator.name} returns nothing: write `-> Tensor`")
    for result in func.returns:
        if str(result.type) != "Tensor":
            raise ForkError(
                f"{operator.name} returns {result.type}: a first operator returns tensors only, such as "
                "`-> (Tensor, Tensor)`"
            )
        if result.annotation is not None:
            raise ForkError(f"{operator.name} returns a view: a first operator returns new tensors only")
    names = [name for name in operator.outputs if name]
    for name in names:
        known = [argument.name for argument in operator.arguments]
        if names.count(name) > 1 or name in known or _is_word(name):
            raise ForkError(f"{operator.name}: the output {name} has a name that something else has: rename it")
    if names and len(names) < len(operator.outputs):
        raise ForkError(f"{operator.name} names some of its outputs: name all of them, or none")


def _is_word(name: str) -> bool:
    """Whether Python or C++ uses a name itself."""
    kind, _ = next(iter(get_lexer_by_name("cpp").get_tokens(name)))
    return keyword.iskeyword(name) or (kind[:1] == ("Keyword",) and name not in SOMETIMES)


def _without_at(text: str) -> str:
    """C++ as it is written inside of namespace at."""
    return re.sub(r"(?<![\w:])(::)?at::", "", text).replace("::std::", "std::").replace(" & ", "& ")
