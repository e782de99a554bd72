"""Texts to insert: calls with a tab stop for each operand and each attribute that must be given."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from opstep.api.catalogue import Entry
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.op import AttrSpec, Op
from opstep.runtime.ir.printer import print_value
from opstep.runtime.ir.types import DTYPES

GRAPH = (
    "graph ${1:main}(${2:x}: ${3:f32[N]}) -> ${4:f32[N]} {\n"
    "  ${5:y} = ${6:relu}(${2:x})$0\n"
    "  return ${5:y}\n"
    "}"
)
PARAM = "param ${1:w}: ${2:f32[8]} = ${3:normal(std=0.1)}$0"
STATE = "state ${1:step}: ${2:i32[]} = ${3:0}$0"
MESH = "mesh ${1:data}: ${2:4}$0"
ASSERT = 'assert ${1:fine}, "${2:what is wrong}"$0'

_STOP = re.compile(r"\$\{\d+:([^}]*)\}")
_NUMBERS = {"int": "1", "dim": "N", "float": "0.0", "number": "0"}


def call(entry: Entry, stop: int = 1, inferred: Collection[str] = ()) -> tuple[str, int]:
    """``conv2d(${1:x}, ${2:w})`` and the number of the next stop.

    Attributes in `inferred` are known without being written, as those of an initialiser are.
    """
    if isinstance(entry, Graph):
        operands = [b.name.text for b in entry.inputs]
        attrs: list[AttrSpec] = []
    else:
        operands = [o.name for o in entry.operands if not o.optional]
        attrs = [a for a in entry.attrs if a.required and a.name not in inferred]
    parts = []
    for operand in operands:
        parts.append(f"${{{stop}:{escape(operand)}}}")
        stop += 1
    for spec in attrs:
        parts.append(f"{spec.name}={_required(entry, spec, stop)}")
        stop += 1
    return f"{name_of(entry)}({', '.join(parts)})", stop


def statement(entry: Entry, used: Collection[str]) -> str:
    """A whole statement: the call, with names for its results that are not taken."""
    names = [free(name, used) for name in results(entry)]
    stops = [f"${{{k}:{escape(name)}}}" for k, name in enumerate(names, 1)]
    text, _ = call(entry, len(names) + 1)
    return f"{', '.join(stops)} = {text}$0" if names else f"{text}$0"


def results(entry: Entry) -> list[str]:
    """Names for the results of a call."""
    if isinstance(entry, Graph):
        count = len(entry.results)
        return ["y"] if count == 1 else [f"y{k}" for k in range(count)]
    return [name.removesuffix("...") for name in entry.results]


def free(name: str, used: Collection[str]) -> str:
    """`name`, or `name` with the first number that makes it a new one."""
    if name not in used:
        return name
    number = 1
    while f"{name}{number}" in used:
        number += 1
    return f"{name}{number}"


def attribute(entry: type[Op], spec: AttrSpec) -> str:
    """``axis=${1:-1}``: an attribute with its default to be replaced, or a choice of its values."""
    if spec.required:
        return f"{spec.name}={_required(entry, spec, 1)}"
    chosen = values(entry, spec)
    if chosen:
        default = print_value(spec.default)
        ordered = [v for v in chosen if v != default] + ([default] if spec.type != "bool" else [])
        return f"{spec.name}={ordered[0] if len(ordered) == 1 else _choice(ordered, 1)}"
    if spec.default is None:
        return f"{spec.name}={_required(entry, spec, 1)}"
    return f"{spec.name}=${{1:{escape(print_value(spec.default))}}}"


def values(entry: type[Op], spec: AttrSpec) -> list[str]:
    """All that an attribute can be, as it is written; empty where that has no end."""
    if spec.type == "bool":
        return ["true", "false"]
    if spec.type == "dtype":
        return list(DTYPES)
    if spec.type == "str":
        return [print_value(word) for word in entry.choices.get(spec.name, ())]
    return []


def plain(snippet: str) -> str:
    """A snippet for a client that knows none: up to its parenthesis, the names filled in."""
    return _STOP.sub(r"\1", snippet.partition("(")[0]) + "("


def name_of(entry: Entry) -> str:
    return entry.name.text if isinstance(entry, Graph) else entry.name


def escape(text: Any) -> str:
    """`text` inside a placeholder of a snippet."""
    return str(text).replace("\\", "\\\\").replace("$", "\\$").replace("}", "\\}")


def _required(entry: Entry, spec: AttrSpec, stop: int) -> str:
    assert not isinstance(entry, Graph)
    chosen = values(entry, spec)
    if chosen:
        return _choice(chosen, stop)
    if spec.type == "str":
        return f'"${{{stop}}}"'
    if spec.type == "graph":
        return f"${{{stop}:{spec.name}}}"
    if spec.type == "axes":
        return f"${{{stop}}}"
    if spec.type in _NUMBERS:
        return f"${{{stop}:{_NUMBERS[spec.type]}}}"
    return f"[${{{stop}}}]"


def _choice(words: Iterable[str], stop: int) -> str:
    escaped = [w.replace("\\", "\\\\").replace(",", "\\,").replace("|", "\\|") for w in words]
    return f"${{{stop}|{','.join(escaped)}|}}"
