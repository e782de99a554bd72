"""Readable names: values are called after Python's variables, graphs after classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from opstep.runtime.ir.graph import Apply, Assert, Binding, Literal, Name, Return, Statement, Update
from opstep.runtime.ir.lexer import RESERVED


def identifier(text: str, default: str = "v") -> str:
    """A text as the name of a value: ``h.0.attn`` becomes ``h_0_attn``."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
    if not name or not (name[0].isalpha() or name[0] == "_"):
        name = f"{default}_{name}" if name else default
    return f"{name}_" if name in RESERVED else name


def renamed(body: Iterable[Statement], names: Mapping[str, str]) -> tuple[Statement, ...]:
    """Statements with values and named tensors called otherwise."""

    def name(n: Name) -> Name:
        return Name(names.get(n.text, n.text))

    def operand(o: Name | Literal) -> Name | Literal:
        return name(o) if isinstance(o, Name) else o

    def one(s: Statement) -> Statement:
        match s:
            case Apply():
                results = tuple(Binding(name(r.name), r.type) for r in s.results)
                return replace(s, results=results, operands=tuple(map(operand, s.operands)))
            case Assert():
                return replace(s, condition=name(s.condition))
            case Update():
                return replace(s, target=name(s.target), value=operand(s.value))
            case Return():
                return replace(s, values=tuple(map(name, s.values)))

    return tuple(map(one, body))
