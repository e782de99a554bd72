"""A program whose step also returns figures of its values: what conditions on them look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from opstep.api.program import Program
from opstep.api.training import grown
from opstep.optim.writing import fresh, local_names, statements
from opstep.runtime.ir.graph import (
    NOWHERE,
    Apply,
    Binding,
    Graph,
    Module,
    Name,
    Return,
    Statement,
    Update,
)
from opstep.runtime.ir.lexer import quote_name
from opstep.runtime.ir.places import gradients_called, place_of
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import TensorType, f32

PREFIX = "watched_figure_"  # of the names of figures among the step's results
FIGURES = {  # by the function of expressions the op that computes it
    "absmax": "norm({}, p=inf)",
    "l2": "norm({})",
    "max": "max({})",
    "mean": "mean({})",
    "min": "min({})",
    "std": "std({}, correction=0)",
}
VALUE = "value"  # of a scalar: itself
SUMS = ("l2", "mean", "std")  # overflow in types of two bytes


@dataclass(frozen=True)
class StepValue:
    """A value of a step of training. `graph`: the one that computes it, the step's own or the
    gradient that it calls; `name`: what it is called there.
    """

    graph: str
    name: str
    type: TensorType
    statement: Apply

    @property
    def place(self) -> str:
        """The line that it belongs to: ``the backward of `y = linear(x, w)`, net.opg:12``."""
        derived_from = self.statement.derived_from
        if derived_from is None:
            return ""
        text = print_statement(derived_from.statement).strip()
        part = "the backward of" if derived_from.backward else "the forward,"
        path, line, _ = place_of(self.statement, None)
        return f"{part} `{text}`, {path.rpartition('/')[2]}:{line}" if line else f"{part} `{text}`"


class Wanted(NamedTuple):
    """A figure of a value, or the value itself."""

    figure: str
    value: StepValue


def step_values(program: Program, name: str) -> dict[str, StepValue]:
    """The values of a step by name, in the order in which they are computed: those of the gradient
    that it calls, then its own, also by the name of a param or state that they become.
    """
    step, found = program.graphs[name], {}
    for graph in (*gradients_called(program.graphs, name), step):
        types = program.verified.graphs[graph.name.text].types
        for statement, binding in _computed(graph):
            value = binding.name.text
            one = StepValue(graph.name.text, value, types[value], statement)
            found.setdefault(value, one)  # what a gradient returns is its value
    for update in step.body:
        if isinstance(update, Update) and isinstance(update.value, Name):
            value = found.get(update.value.text)
            if value is not None and value.graph == name:
                found.setdefault(update.target.text, value)
    returned = next((s for s in step.body if isinstance(s, Return)), None)
    if returned is not None and returned.values[0].text in found:
        found.setdefault("loss", found[returned.values[0].text])
    return found


def _computed(graph: Graph) -> Iterator[tuple[Apply, Binding]]:
    for statement in graph.body:
        if isinstance(statement, Apply):
            yield from ((statement, binding) for binding in statement.results)


def watched(program: Program, name: str, wanted: Sequence[Wanted]) -> tuple[Program, list[str]]:
    """The program with a step that returns these figures, too, and their names in that order."""
    step = program.graphs[name]
    taken = set(program.module.tensors).union(*map(local_names, program.graphs.values()))
    names: list[str] = []
    for k in range(len(wanted)):
        names.append(fresh(f"{PREFIX}{k}", taken))
    named = list(zip(names, wanted, strict=True))
    new: dict[str, Graph] = {}
    for inner in dict.fromkeys(w.value.graph for w in wanted if w.value.graph != name):
        own = [(n, w) for n, w in named if w.value.graph == inner]
        new[inner] = _returning(program.graphs[inner], own)
        step = replace(step, body=tuple(_calling(s, inner, own) for s in step.body))
    step = _returning(step, [(n, w) for n, w in named if w.value.graph == name], named)
    new[name] = step
    items = (new.get(i.name.text, i) if isinstance(i, Graph) else i for i in program.module.items)
    module = program.module
    return grown(program, Module((*items,), module.closing, module.source)), names


def _returning(
    graph: Graph, own: Sequence[tuple[str, Wanted]],
    returned: Sequence[tuple[str, Wanted]] | None = None,
) -> Graph:  # fmt: skip
    """A graph that computes its `own` figures, each behind its value, and returns `returned`."""
    returned = own if returned is None else returned
    body: list[Statement] = []
    for statement in graph.body:
        if isinstance(statement, Return):
            values = (*statement.values, *(Name(n) for n, _ in returned))
            statement = replace(statement, values=values)
        body.append(statement)
        if isinstance(statement, Apply):
            results = {b.name.text for b in statement.results}
            for n, one in own:
                if one.value.name in results:
                    body += _figure(n, one)
    types = (*graph.results, *(_type(w) for _, w in returned))
    return replace(graph, body=tuple(body), results=types, results_span=NOWHERE)


def _calling(statement: Statement, inner: str, own: Sequence[tuple[str, Wanted]]) -> Statement:
    """A call of a graph that returns more than it did."""
    if not isinstance(statement, Apply) or statement.callee.text != inner:
        return statement
    more = (Binding(Name(n), None) for n, _ in own)
    return replace(statement, results=(*statement.results, *more))


def _figure(name: str, wanted: Wanted) -> tuple[Statement, ...]:
    value, figure = quote_name(wanted.value.name), wanted.figure
    target = quote_name(name)
    dtype = wanted.value.type.dtype
    if figure == VALUE:
        lines = [f"{target} = reshape({value}, shape=[])"]
    elif figure in SUMS and dtype.is_half:
        wide = quote_name(f"{name}_wide")
        lines = [f"{wide} = cast({value}, dtype=f32)", f"{target} = {FIGURES[figure].format(wide)}"]
    else:
        lines = [f"{target} = {FIGURES[figure].format(value)}"]
    return statements(lines)


def _type(wanted: Wanted) -> TensorType:
    dtype = wanted.value.type.dtype
    return TensorType(f32 if wanted.figure in SUMS and dtype.is_half else dtype, ())


def figures_of(results: Iterable[str]) -> list[str]:
    """Those results of a step that are figures of others."""
    return [n for n in results if n.startswith(PREFIX)]
