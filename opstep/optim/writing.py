"""Adds graphs that are written as text to a module: they are parsed, freed of places in a text that
no file has, and called as nothing else in the program is.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from opstep.runtime.ir.graph import (
    NOWHERE,
    Apply,
    Attr,
    Declaration,
    Graph,
    Module,
    Name,
    Span,
    Statement,
    TypeParameter,
)
from opstep.runtime.ir.lexer import quote_name
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import TensorType

_T = TypeVar("_T")


def lines(text: str) -> list[str]:
    """The statements of a text, one a line, however it is indented."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def generic(t: TensorType) -> str:
    """A type of that rank and element type with a symbol in each dim: ``f32[A, B]``."""
    letters = [*string.ascii_uppercase, *(f"A{letter}" for letter in string.ascii_uppercase)]
    return f"{t.dtype}[{', '.join(letters[: t.rank])}]"


def type_of(text: str) -> TensorType:
    """The type that is written so."""
    graph = parse(f"graph g(x: {text}) {{\n}}\n").graphs["g"]
    found = graph.inputs[0].type
    assert found is not None
    return found


def fresh(stem: str, taken: Collection[str]) -> str:
    """`stem`, or with the first number that makes it one that is not taken."""
    name, k = stem, 0
    while name in taken:
        k += 1
        name = f"{stem}_{k}"
    return name


def statements(lines: Iterable[str]) -> tuple[Statement, ...]:
    """Statements that are written so, without places."""
    text = "\n".join(f"  {line}" for line in lines)
    return rebuilt(parse(f"graph g() {{\n{text}\n}}\n").graphs["g"].body, {})


class Body:
    """Statements of a graph under construction. `taken`: the names that values cannot have, those
    of new ones included; all bodies of a graph share them.
    """

    def __init__(self, taken: set[str]):
        self.taken = taken
        self.lines: list[str] = []

    def name(self, stem: str) -> str:
        """A name like this that is free."""
        found = fresh(stem, self.taken)
        self.taken.add(found)
        return found

    def line(self, text: str, comment: str = "") -> None:
        """Adds a statement; one with a comment begins a paragraph."""
        if comment:
            self.lines += [*[""] * bool(self.lines), f"# {comment}"]
        self.lines.append(text)

    def value(self, stem: str, expression: str, comment: str = "") -> str:
        """Adds a statement with one result; gives its name."""
        name = self.name(stem)
        self.line(f"{name} = {expression}", comment)
        return name


def rebuilt(node: _T, names: Mapping[str, str]) -> _T:
    """A part of a syntax tree without spans; values are called what `names` has for them."""
    if isinstance(node, Span):
        return NOWHERE  # pyright: ignore[reportReturnType]
    if isinstance(node, Name):
        return Name(names.get(node.text, node.text))  # pyright: ignore[reportReturnType]
    if type(node) is tuple:
        return tuple(rebuilt(part, names) for part in node)  # pyright: ignore[reportReturnType]
    if not is_dataclass(node):
        return node
    names = {} if isinstance(node, TypeParameter) else names
    other = {"callee"} if isinstance(node, Apply) else set()
    other |= {"name"} if isinstance(node, Attr | Graph) else set()  # these name no values
    return replace(
        node,  # pyright: ignore[reportArgumentType]
        **{f.name: rebuilt(getattr(node, f.name), {} if f.name in other else names)
           for f in fields(node)},
    )  # fmt: skip


def local_names(graph: Graph) -> set[str]:
    """The inputs of a graph and the results of its statements."""
    found = {b.name.text for b in graph.inputs}
    return found | {b.name.text for s in graph.body if isinstance(s, Apply) for b in s.results}


class Writer:
    """What is added to a module: named tensors and graphs. `ops`: names no graph can have."""

    def __init__(self, module: Module, ops: Iterable[str]):
        self.module = module
        self.tensors = dict(module.tensors)
        self.graphs = dict(module.graphs)
        self.reserved = set(ops)
        self.declared: list[Declaration] = []
        self.written: list[Graph] = []

    def declare(self, text: str) -> None:
        """Adds named tensors as they are written, comments included."""
        for item in parse(text).items:
            assert isinstance(item, Declaration)
            self.declared.append(rebuilt(item, {}))
            self.tensors[item.name.text] = item

    def graph(
        self,
        name: str,
        inputs: Mapping[str, str],
        results: Mapping[str, str],
        body: str | Sequence[str],
        comment: str = "",
        type_parameters: str = "",
    ) -> str:
        """Adds a graph, and gives its name: `name`, or one like it that is free. A graph that is
        there and says the same stands for it. `inputs` and `results`: types by name;
        `type_parameters`: as they are written, ``<T: float>``.
        """
        graph = self._parsed(name + type_parameters, inputs, results, body, comment)
        stem, k = name, 0
        while name in self.reserved or self.graphs.get(name, graph) != graph:
            k += 1
            name = f"{stem}_{k}"
            graph = replace(graph, name=Name(name))
        if name not in self.graphs:
            self.graphs[name] = graph
            self.written.append(graph)
        return name

    def _parsed(self, head: str, inputs, results, body, comment: str) -> Graph:
        taken = ", ".join(f"{n}: {t}" for n, t in inputs.items())
        types = f" -> {', '.join(results.values())}" if results else ""
        returned = [f"return {', '.join(map(quote_name, results))}"] if results else []
        body = lines(body) if isinstance(body, str) else list(body)
        comments = "".join(f"# {line}\n" for line in comment.splitlines())
        text = "\n".join(f"  {line}" for line in [*body, *returned])
        name = head.partition("<")[0]
        module = parse(f"{comments}graph {head}({taken}){types} {{\n{text}\n}}\n", f"{name}.opg")
        graph = module.graphs[name]
        mine = local_names(graph)
        taken = mine | set(self.tensors)
        other = {n: fresh(f"{n}_1", taken) for n in mine & set(self.tensors)}
        return rebuilt(graph, other)

    def finished(self) -> Module:
        """The module with what was added."""
        return Module(
            (*self.module.items, *self.declared, *self.written),
            self.module.closing,
            self.module.source,
        )
