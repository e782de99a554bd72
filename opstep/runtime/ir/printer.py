"""Syntax tree to text, in the one canonical form: what ``opstep fmt`` writes.

``parse(print_module(m)) == m`` for every module that parses, and printing twice changes nothing.
Lines of more than 100 columns are broken inside their parentheses.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Attr,
    Binding,
    Comments,
    Declaration,
    Graph,
    Literal,
    MeshDeclaration,
    Module,
    Name,
    Provenance,
    Return,
    Sharding,
    SourceLine,
    Statement,
)
from opstep.runtime.ir.lexer import quote, quote_name
from opstep.runtime.ir.types import DEFAULT_FAMILY

_WIDTH = 100
_INDENT = "  "


def print_module(module: Module) -> str:
    """The text of a module; "" for an empty one."""
    return "".join(print_parts(module))


def print_parts(module: Module) -> list[str]:
    """The text of each item, with the blank line that sets it apart; then the comments behind the
    last, if any.
    """
    parts: list[str] = []
    after_graph = False
    for item in module.items:
        is_graph = isinstance(item, Graph)
        lines = [""] if parts and (is_graph or after_graph) else []  # graphs stand apart
        if isinstance(item, Graph):
            _graph(item, lines)
        else:
            _above(item.comments, "", lines)
            one = _mesh(item) if isinstance(item, MeshDeclaration) else _declaration(item)
            lines += _with_trailing(one, item.comments)
        after_graph = is_graph
        parts.append(_text(lines))
    if module.closing.above:
        lines = [""] if after_graph else []
        _above(module.closing, "", lines)
        parts.append(_text(lines))
    return parts


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def print_graph(graph: Graph) -> str:
    """The text of one graph."""
    lines: list[str] = []
    _graph(graph, lines)
    return _text(lines)


def print_statement(s: Statement) -> str:
    """The text of one statement, on one line and without its comments; of the lines that it came
    from the innermost, in a file that is relative to where one stands, if it is below.
    """
    if s.at is not None:
        file, line = s.at.file, s.at.line
        s = replace(s, at=Provenance((SourceLine(_below(file), line),), s.at.module))
    return _statement(s).text()


def _below(file: str) -> str:
    here = os.path.join(os.getcwd(), "")
    return file.removeprefix(here)


def print_value(value: Any) -> str:
    """An attribute's value or a literal as it is written: ``[N, 8]``, ``"none"``, ``-inf``."""
    if value is None or type(value) is bool:
        return {None: "none", True: "true", False: "false"}[value]
    if type(value) is str:
        return quote(value)
    if type(value) is tuple:
        return f"[{', '.join(map(print_value, value))}]"
    if type(value) is float:
        return repr(value)  # the shortest text that reads back as the same number
    name = getattr(value, "name", None)  # of a Ref or a DType
    return name if type(name) is str else str(value)


class _Line:
    """``head(item, item)tail``: broken inside its parentheses where it is too long, but for the
    `origin` behind it, which nobody reads line by line.
    """

    def __init__(self, head: str, items: list[str] | None = None, tail: str = "", origin: str = ""):
        self.head = head
        self.items = items
        self.tail = tail
        self.origin = origin

    def text(self) -> str:
        if self.items is None:
            return self.head + self.tail + self.origin
        return f"{self.head}({', '.join(self.items)}){self.tail}{self.origin}"

    def lines(self, indent: str) -> list[str]:
        one_line = indent + self.text()
        if len(one_line) - len(self.origin) <= _WIDTH or not self.items:
            return [one_line]
        lines = [f"{indent}{self.head}("]
        inner = indent + 2 * _INDENT
        row = ""
        for item in self.items:
            if row and len(inner) + len(row) + len(item) + 2 > _WIDTH:
                lines.append(inner + row)
                row = ""
            row += f"{' ' if row else ''}{item},"
        return [*lines, inner + row, f"{indent}){self.tail}{self.origin}"]


def _graph(graph: Graph, lines: list[str]) -> None:
    _above(graph.comments, "", lines)
    inputs = [_binding(b) for b in graph.inputs]
    results = f" -> {', '.join(map(str, graph.results))}" if graph.results else ""
    head = f"graph {graph.name.text}{print_type_parameters(graph)}"
    header = _Line(head, inputs, f"{results} {{")
    lines += _with_trailing(header.lines(""), graph.comments)
    for s in graph.body:
        _above(s.comments, _INDENT, lines)
        lines += _with_trailing(_statement(s).lines(_INDENT), s.comments)
    _above(graph.closing, _INDENT, lines)
    lines += _with_trailing(["}"], graph.closing)


def print_type_parameters(graph: Graph) -> str:
    """``<T: float>``; "" where a graph has none."""
    found = []
    for p in graph.type_parameters:
        family = "" if p.family.text == DEFAULT_FAMILY else f": {p.family.text}"
        found.append(p.name.text + family)
    return f"<{', '.join(found)}>" if found else ""


def _mesh(m: MeshDeclaration) -> list[str]:
    return [f"mesh {', '.join(f'{a.name.text}: {a.extent}' for a in m.axes)}"]


def _declaration(d: Declaration) -> list[str]:
    head = f"{d.kind} {quote_name(d.name.text)}: {d.type}{print_sharding(d.sharding)}"
    if d.value is not None:
        return [f"{head} = {print_value(d.value.value)}"]
    if d.init is not None:
        return _Line(f"{head} = {d.init.text}", [_attr(a) for a in d.attrs]).lines("")
    return [head]


def print_sharding(s: Sharding | None) -> str:
    """`` over model axis 1``; "" where there is none."""
    if s is None:
        return ""
    names = ", ".join(name.text for name in s.over)
    axis = f" axis {s.axis}" if s.axis else ""
    return f" over {names if len(s.over) == 1 else f'[{names}]'}{axis}"


def _statement(s: Statement) -> _Line:
    if isinstance(s, Apply):
        results = ", ".join(map(_binding, s.results))
        items = [_operand(o) for o in s.operands] + [_attr(a) for a in s.attrs]
        head = f"{results} = {s.callee.text}" if results else s.callee.text
        return _Line(head, items, origin=print_origin(s.at))
    if isinstance(s, Return):
        return _Line(
            f"return {', '.join([quote_name(v.text) for v in s.values])}", origin=print_origin(s.at)
        )
    if isinstance(s, Assert):
        message = f", {quote(s.message)}" if s.message else ""
        return _Line(f"assert {quote_name(s.condition.text)}{message}", origin=print_origin(s.at))
    return _Line(f"{quote_name(s.target.text)} <- {_operand(s.value)}", origin=print_origin(s.at))


def _binding(b: Binding) -> str:
    return b.name.text if b.type is None else f"{b.name.text}: {b.type}"


def _operand(o: Name | Literal) -> str:
    return quote_name(o.text) if isinstance(o, Name) else print_value(o.value)


def _attr(a: Attr) -> str:
    return f"{a.name.text}={print_value(a.value)}"


def print_origin(at: Provenance | None) -> str:
    """What stands behind a statement that was imported: `` at "model.py":33 in "encoder.0"``."""
    if at is None:
        return ""
    frames, file = [], None
    for frame in at.frames:
        frames.append(
            str(frame.line) if frame.file == file else f"{quote(frame.file)}:{frame.line}"
        )
        file = frame.file
    module = f" in {quote(at.module)}" if at.module else ""
    return f" at {', '.join(frames)}{module}"


def _above(comments: Comments, indent: str, lines: list[str]) -> None:
    for text in comments.above:
        for line in text.split("\n"):
            lines.append(indent + _comment(line) if line else "")


def _with_trailing(lines: list[str], comments: Comments) -> list[str]:
    if comments.trailing is not None:
        lines[-1] += "  " + _comment(comments.trailing.replace("\n", " "))
    return lines


def _comment(text: str) -> str:
    """``# text``; more signs, as in ``##`` and ``#!``, stay together."""
    text = text.rstrip()
    return f"#{text}" if text[:1] in ("#", "!", "") else f"# {text}"
