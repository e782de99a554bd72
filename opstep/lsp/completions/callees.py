"""Proposals at the start of a statement and behind its ``=``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from opstep.api.catalogue import Entry, catalogue, family_of
from opstep.lsp.completions import snippets
from opstep.lsp.completions.proposals import Kind, Proposals
from opstep.lsp.completions.scope import Scope, head
from opstep.runtime.ir.graph import Graph, Return
from opstep.runtime.ir.lexer import quote_name
from opstep.runtime.ir.op import Op

_MOST_GRAPHS = 120  # of a file, as long as nothing is typed


def propose_statement(out: Proposals) -> None:
    """Keywords, updates, and calls with names for their results."""
    scope = out.scope
    if scope.item is not None and _may_return(scope):
        out.add("return", Kind.Keyword, "the last statement", "return ", rank=1)
    out.add("assert", Kind.Keyword, "fails where the condition is false", "assert ",
            snippet=snippets.ASSERT, rank=1)  # fmt: skip
    for tensor, d in scope.tensors.items():
        name = quote_name(tensor)
        out.add(f"{name} <-", Kind.Field, f"update the {d.kind} {d.type}", f"{name} <- ", rank=2)
    for entry in callees_at(out):
        _call(out, entry, snippets.statement(entry, scope.names_in_use))


def propose_callee(out: Proposals) -> None:
    """Ops and graphs that give something."""
    for entry in callees_at(out):
        if not isinstance(entry, Graph) or entry.results:
            _call(out, entry, snippets.call(entry)[0] + "$0")


def callees_at(out: Proposals) -> Iterator[Entry]:
    """Graphs and ops that match what is typed; a graph cannot call itself. Of many graphs the
    nearest ones.
    """
    scope = out.scope
    own = scope.item.name if scope.item is not None else ""
    names = [name for name in scope.graph_names() if name != own and out.wants(name)]
    if len(names) > _MOST_GRAPHS:
        position = scope.item.start if scope.item is not None else 0
        items = scope.file.graphs
        far = len(scope.file.text)  # of the library
        names.sort(key=lambda n: abs(items[n].start - position) if n in items else far)
        del names[_MOST_GRAPHS:]
        out.cut_short = True
    yield from (g for name in names if (g := scope.file.environment.graphs.get(name)) is not None)
    yield from (op for op in _ops() if out.wants(op.name))


@cache
def _ops() -> list[type[Op]]:
    ops = [entry for entry in catalogue().values() if not isinstance(entry, Graph)]
    return sorted(ops, key=lambda op: op.name)


def signature(entry: Entry) -> str:
    """Behind the name: ``(x: F, *, axis: int = -1)``"""
    if isinstance(entry, Graph):
        return head(entry).removeprefix(entry.name.text)
    return entry.signature.removeprefix(entry.name)


def data_of(scope: Scope, entry: Entry) -> dict[str, str]:
    """What `completionItem/resolve` finds the documentation by."""
    if isinstance(entry, Graph):
        return {"graph": entry.name.text, "uri": scope.file.uri}
    return {"op": entry.name}


def _call(out: Proposals, entry: Entry, snippet: str) -> None:
    name = snippets.name_of(entry)
    graph = isinstance(entry, Graph)
    out.call(
        name,
        snippet,
        kind=Kind.Class if graph else Kind.Function,
        detail="" if graph else name + signature(entry),  # a graph's is resolved
        label_detail=f"  {family_of(entry) if name not in out.scope.file.graphs else 'graph'}",
        rank=3 if graph and name in out.scope.file.graphs else 5 if _late(entry) else 4,
        data=data_of(out.scope, entry),
    )


def _late(entry: Entry) -> bool:
    """Gradients are written by a transform, seldom by hand."""
    return not isinstance(entry, Graph) and entry.name.endswith("_grad")


def _may_return(scope: Scope) -> bool:
    node = scope.item.node if scope.item is not None else None
    if not isinstance(node, Graph):
        return True
    return bool(node.results) and not any(isinstance(s, Return) for s in node.body[-1:])
