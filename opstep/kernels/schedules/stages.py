"""A graph whose reductions fold different rows, cut into graphs of rows that follow each other.

A stage ends where a reduction folds other rows than those before. What it leaves for later ones are
numbers of its rows; all else that these need is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from opstep.kernels.move.creation import iota
from opstep.kernels.pointwise.selection import cast
from opstep.kernels.reduce import reduce as reductions
from opstep.kernels.reduce.reduce import reduced_axes
from opstep.kernels.rules.axes import axis_of
from opstep.kernels.schedules.row_graph import FOLDS, RowGraph, Unfit, row_graph
from opstep.runtime.device.launch import Arg, Held
from opstep.runtime.ir.graph import Apply, Binding, Graph, Name, Return
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.verified import Application, VerifiedGraph
from opstep.runtime.transforms.composite import Composite, definition


@dataclass(frozen=True, eq=False)
class Stage:
    """A graph of rows; `operands` and `results` are names of values of the whole. Of `sums`, some
    of its results, the elements of several rows are added: they have as many rows fewer.
    """

    graph: RowGraph
    operands: tuple[str, ...]
    results: tuple[str, ...]
    sums: tuple[int, ...] = ()


class Stages(NamedTuple):
    """`left`: the types of what stages leave for later ones."""

    stages: tuple[Stage, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    left: dict[str, TensorType]


def parted(
    op: type[Composite], args: Sequence[Arg | None], attrs: dict, seen: str, parts: int
) -> Iterator[tuple[Stage, list[Any], list[Any], tuple[int, ...]]]:
    """The stages of a composite for its operands and results: each with its own operands and
    results, some of which are working memory, and the operands in whose buffer a result may be.
    `seen`: the attribute of `args` that is the type in which the graph has them; `parts`: how many
    parts sums over rows have, or with a minus how many rows a part has. Raises `Unfit`.
    """
    count = len(op.operands)
    operands, results = args[:count], [a for a in args[count:] if a is not None]
    if not any(a.size for a in results):
        return
    types = tuple(a and TensorType(getattr(a, seen), a.shape) for a in operands)
    found = _stages(op, types, tuple(attrs.items()), parts)
    present = [a for a in operands if a is not None]
    inplace = tuple(present.index(a) for k in op.inplace if (a := operands[k]) is not None)
    if len(found.stages) == 1:
        yield found.stages[0], present, results, inplace
        return
    if inplace:
        raise Unfit("a result may be where a later stage reads")
    held: dict[str, Any] = {n: Held(t.dtype, t.shape) for n, t in found.left.items()}  # pyright: ignore[reportArgumentType]
    made = held | dict(zip(found.results, results, strict=True))
    read = made | dict(zip(found.inputs, present, strict=True))
    for stage in found.stages:
        yield stage, [read[n] for n in stage.operands], [made[n] for n in stage.results], ()


@lru_cache(256)
def _stages(op: type[Composite], types: tuple, attrs: tuple, parts: int) -> Stages:
    return stages_of(definition(op, types, dict(attrs)).graphs[op.name], parts)


def rows_of_part(rows: int, parts: int) -> int:
    """The most rows that a sum has, of so many; `parts` as `parted` has it."""
    return max(1, -parts if parts < 0 else -(-rows // parts))


def stages_of(graph: VerifiedGraph, parts: int = -1) -> Stages:
    """Raises `Unfit` where the graph is neither one of rows nor several that follow each other."""
    inputs, last = tuple(b.name.text for b in graph.graph.inputs), graph.graph.body[-1]
    assert isinstance(last, Return)
    results = tuple(name.text for name in last.values)
    try:
        return Stages((Stage(row_graph(graph), inputs, results),), inputs, results, {})
    except Unfit:
        if len(firsts := _firsts(graph)) < 2 or {*inputs}.intersection(results):
            raise
    if found := _with_sums(graph, inputs, results, parts):
        return found
    found, left = list[Stage](), dict[str, TensorType]()
    for first, end in zip(firsts, [*firsts[1:], len(graph.applications)], strict=True):
        more = _left(graph, first, end, {*inputs, *left})
        here = {n.name.text for s in graph.graph.body[first:end] for n in getattr(s, "results", ())}
        names = list(dict.fromkeys([*(r for r in results if r in here), *more]))
        part = _part(graph, names, [*inputs, *left])
        found.append(
            Stage(row_graph(part), tuple(b.name.text for b in part.graph.inputs), tuple(names))
        )
        left |= {name: graph.types[name] for name in more}
    left = {name: t for name, t in left.items() if name not in results}
    return Stages(tuple(found), inputs, results, left)


def _with_sums(
    graph: VerifiedGraph, inputs: tuple[str, ...], results: tuple[str, ...], parts: int
) -> Stages | None:
    """Stages of a graph in which some results are sums over all rows, of what is computed of their
    elements: the first adds parts of them as rows go by. None of any other graph.
    """
    made = {
        s.results[0].name.text: (s, a)
        for s, a in zip(graph.graph.body, graph.applications, strict=True)
        if isinstance(s, Apply) and a is not None
    }
    rows = {_looked_along(a) for _, a in made.values() if a.op in FOLDS}
    sums = {r: fold for r in results if (fold := _sum_of(made, r, rows))}
    shapes = {graph.types[term].shape for term, _ in sums.values()}
    if not sums or len(shapes) != 1:
        return None
    others = [r for r in results if r not in sums]
    terms = list(dict.fromkeys(term for term, _ in sums.values()))
    names = others + [f"of {term}" for term in terms]
    part = _part(graph, [*others, *terms], inputs)
    first = row_graph(part)
    if first.rows.after != 1 or first.rows.apart or first.rows.shape not in shapes:
        return None
    each = rows_of_part(first.rows.before, parts)
    places = tuple(range(len(others), len(names)))
    dtypes = {graph.types[term].dtype for term in terms}
    if dtypes != {first.dtype}:
        return None
    count, n = -(-first.rows.before // each), first.rows.n
    left = {f"of {t}": TensorType(first.dtype, (count, n)) for t in terms}
    given = [b.name.text for b in part.graph.inputs]
    stages = [Stage(first, tuple(given), tuple(names), places)]
    for r, (term, _) in sums.items():
        stages.append(
            Stage(_added(first.dtype, count, n, graph.types[r].dtype), (f"of {term}",), (r,))
        )
    return Stages(tuple(stages), inputs, results, left)


def _sum_of(made: dict, name: str, rows: set) -> tuple[str, Any] | None:
    """The term of a result that is a sum over all rows along which others are folded."""
    while name in made and (made[name][1].op.traits.reinterprets or made[name][1].op is cast):
        (name,) = _names(made[name][0])
    if name not in made or made[name][1].op is not reductions.sum:
        return None
    shape, axes = _looked_along(made[name][1])  # pyright: ignore[reportGeneralTypeIssues]
    rest = tuple(k for k in range(len(shape)) if k not in axes)
    if (shape, rest) not in rows or axes != tuple(range(len(axes))) or not axes:
        return None
    return _names(made[name][0])[0], axes


@lru_cache(256)
def _added(dtype: DType, parts: int, n: int, result: DType) -> RowGraph:
    """The sum over parts, as that type."""
    from opstep.runtime.ir.parser import parse
    from opstep.runtime.ir.verify import verify

    text = f"""graph added(x: {dtype.name}[{parts}, {n}]) -> {result.name}[{n}] {{
  total = sum(x, axes=[0])
  y = cast(total, dtype={result.name})
  return y
}}
"""
    return row_graph(verify(parse(text, "<added>"), OPS).graphs["added"])


def _firsts(graph: VerifiedGraph) -> list[int]:
    """The statements with which stages begin: they look along other rows than those before."""
    firsts, shape, axes = list[int](), None, None
    for k, application in enumerate(graph.applications):
        now = application and _looked_along(application)
        if now and (now[1] != axes or (shape and now[0] and now[0] != shape)):
            firsts.append(k if firsts else 0)
            shape, axes = now
        elif now:
            shape = now[0] or shape
    return firsts


def _looks_along(op: Any) -> bool:
    return op in FOLDS or (op is not None and op.name == "gather_elements")


def _looked_along(
    application: Application,
) -> tuple[tuple[int, ...] | None, tuple[int, ...]] | None:
    """The shape, if known, and the axes of the rows that an op folds or looks along."""
    op, attrs = application.op, application.attrs
    if op is iota:
        return None, (axis_of(attrs["axis"], len(attrs["shape"])),)
    if not _looks_along(op):
        return None
    t: Any = application.resolved.operands[0]
    if op not in FOLDS:
        return t.shape, (axis_of(attrs["axis"], t.rank),)
    return t.shape, tuple(sorted(reduced_axes(t, attrs["axes"])))


def _left(graph: VerifiedGraph, first: int, end: int, known: Collection[str]) -> list[str]:
    """The numbers of rows that statements up to `end` compute and later ones need."""
    body, made = graph.graph.body, dict[str, Apply]()
    looked, rows = set[str](), 0  # what depends on rows that are folded; how many there are
    for k, (statement, application) in enumerate(zip(body[:end], graph.applications, strict=False)):
        if isinstance(statement, Return):
            break
        if not isinstance(statement, Apply) or application is None:
            raise Unfit("a statement is no op")
        name = statement.results[0].name.text
        made[name] = statement
        if k >= first and _looks_along(application.op):
            rows = max(rows, graph.types[name].size)  # pyright: ignore[reportArgumentType]
            looked.add(name)
        elif looked.intersection(_names(statement)):
            looked.add(name)
    found, left = set[str](), [o for statement in body[end:] for o in _names(statement)]
    seen = set[str]()
    while left:
        name = left.pop()
        if name in seen or name in known or name not in made:
            continue
        seen.add(name)
        if name in looked and graph.types[name].size <= rows:  # pyright: ignore[reportOperatorIssue]
            found.add(name)
        else:
            left += _names(made[name])
    return [name for name in made if name in found]


def _part(graph: VerifiedGraph, names: Sequence[str], known: Sequence[str]) -> VerifiedGraph:
    """The statements that compute these values from the known ones."""
    needed, body, applications = {*names}, list[Any](), list[Any]()
    for statement, application in reversed(
        [*zip(graph.graph.body, graph.applications, strict=True)]
    ):
        if isinstance(statement, Apply):
            name = statement.results[0].name.text
            if name in needed and name not in known:
                needed.update(_names(statement))
                body.insert(0, statement)
                applications.insert(0, application)
    inputs = tuple(Binding(Name(n), graph.types[n]) for n in known if n in needed)
    body.append(Return(tuple(Name(name) for name in names)))
    results = tuple(graph.types[name] for name in names)
    whole = Graph(graph.graph.name, inputs, results, tuple(body))
    return VerifiedGraph(whole, None, graph.types, [*applications, None], ())


def _names(statement: Any) -> list[str]:
    values = statement.values if isinstance(statement, Return) else statement.operands
    return [v.text for v in values if isinstance(v, Name)]
