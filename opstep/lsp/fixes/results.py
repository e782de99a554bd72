"""Results: their types, their names, and what a graph returns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from opstep.lsp.fixes.fix import Edit, Fix, MessageSite, makes, without_types
from opstep.runtime.ir.graph import Apply, Binding, Name, Return
from opstep.runtime.ir.types import TensorType

_TYPE = re.compile(r"\w+\s*\[[^\]]*\]")


@makes("annotation")
def declared_type(site: MessageSite) -> Iterator[Fix]:
    """The inferred type in place of the one that is written, or none."""
    s = site.statement
    if not isinstance(s, Apply):
        return
    results = site.tried(without_types(s), {})
    for k, b in enumerate(s.results):
        if b.type_span == site.span:
            if results is not None:
                yield Fix(f"Write {results[k]}", (Edit(*site.span, str(results[k])),), likely=True)
            edit = Edit(b.name.span.end, site.span.end, "")
            yield Fix(f"Remove the type of {b.name.text}", (edit,))


@makes("return-type")
def returned_type(site: MessageSite) -> Iterator[Fix]:
    """The type that the value has, in the head of the graph."""
    s, graph = site.statement, site.graph
    if not isinstance(s, Return) or graph is None:
        return
    start = graph.results_span.start
    parts = list(_TYPE.finditer(site.item.text[slice(*graph.results_span)]))
    for value, part in zip(s.values, parts, strict=False):
        t = site.types.get(value.text)
        if value.span == site.span and t is not None:
            edit = Edit(start + part.start(), start + part.end(), str(t))
            yield Fix(f"Declare that {graph.name.text} returns {t}", (edit,))


@makes("unnamed-results")
def named(site: MessageSite) -> Iterator[Fix]:
    """Names for the results of a call."""
    s = site.statement
    if not isinstance(s, Apply):
        return
    environment = site.item.file.environment
    graph = environment.graphs.get(s.callee.text)
    op = environment.applier.ops.get(s.callee.text)
    count = len(graph.results) if graph is not None and op is None else 0
    if not count:  # what an op gives depends on its operands
        count = next((n for n in range(1, 33) if _has_results(site, s, n)), 0)
    if count:
        names = [site.fresh("y" if count == 1 else f"y{k}") for k in range(count)]
        text = f"{', '.join(names)} = "
        where = Edit(s.callee.span.start, s.callee.span.start, text)
        what = "Name the result" if count == 1 else f"Name the {count} results"
        yield Fix(f"{what}: {', '.join(names)}", (where,), likely=True, safe=True)


def _has_results(site: MessageSite, s: Apply, count: int) -> bool:
    names = tuple(Binding(Name(f"y{k}"), None) for k in range(count))
    return site.tried(replace(s, results=names), {}) is not None


@makes("missing-return")
def returned(site: MessageSite) -> Iterator[Fix]:
    """A return of the values that were defined last with the types that are wanted."""
    graph = site.graph
    if graph is None:
        return
    names = []
    for declared in graph.results:
        name = _last_of(site, declared, names) or _any_last(site)
        if name is None:
            return
        names.append(name)
    sure = all(site.types.get(n) == t for n, t in zip(names, graph.results, strict=True))
    text = site.item.text
    brace = site.span.start
    line = text.rfind("\n", 0, brace) + 1
    statement = f"return {', '.join(names)}"
    if text[line:brace].strip():  # the brace stands behind something
        before = "" if text[brace - 1 : brace] == "\n" else "\n"
        edit = Edit(brace, brace, f"{before}  {statement}\n")
    else:
        edit = Edit(line, line, f"  {statement}\n")
    yield Fix(f"Add {statement}", (edit,), likely=sure, safe=False)


def _last_of(site: MessageSite, declared: TensorType, used: list[str]) -> str | None:
    """The last value of a type, one that is not taken if there is one."""
    found = [name for name in _defined(site) if site.types.get(name) == declared]
    free = [name for name in found if name not in used]
    return (free or found or [None])[-1]


def _any_last(site: MessageSite) -> str | None:
    """Where none fits: the last one, as a beginning."""
    return next(reversed(_defined(site)), None)


def _defined(site: MessageSite) -> list[str]:
    """Inputs and values in the order in which they are defined."""
    assert site.graph is not None
    names = [b.name.text for b in site.graph.inputs]
    for s in site.graph.body:
        if isinstance(s, Apply):
            names += [b.name.text for b in s.results]
    return names
