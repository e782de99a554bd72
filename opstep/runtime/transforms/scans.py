"""The way back through a `while` that goes over the rows of tensors, such as a recurrent layer.

A derivative by such a tensor has as many rows as the loop has turns. Handed from turn to turn by
graphs within each other (`loops`) each turn would have one of its own. So where it is known how
many turns there are at the most, the loop keeps what its way back needs of each turn as rows of
stacks, and a second `while` goes back over these, with the derivatives as what it carries: it adds
to them in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opstep.runtime.ir.calls import substitute, unify
from opstep.runtime.ir.graph import Apply, Attr, Binding, Graph, Literal, Name, Return
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.verified import VerifiedGraph
from opstep.runtime.transforms.backward import accumulate
from opstep.runtime.transforms.builder import Builder, Operand, Var
from opstep.runtime.transforms.family import Draft, live_statements
from opstep.runtime.transforms.forward import Forward
from opstep.runtime.transforms.loops import COUNT, TRUTH, Loop


class _Turn(NamedTuple):
    """A turn's derivatives as a draft: what it takes, `left` turns, derivatives; what it gives."""

    draft: Draft
    values: list[Var]
    left: Var
    seeds: list[Var]
    found: list[Var]


class Scan:
    """The graphs of such a loop. `rows`: the turns at the most, in the body's symbols; `stacked`
    and `constant`: the carried values that the way back needs, by place, which change or do not.
    """

    def __init__(self, loop: Loop, rows: Any):
        self.loop = loop
        self.rows = rows
        returned = _returned(loop.body)
        inputs = loop.body.graph.inputs
        same = {k for k, b in enumerate(inputs) if returned[k] == b.name.text}
        needed = self._needed()
        self.stacked = [k for k in needed if k not in same]
        self.constant = [k for k in needed if k in same]

    @staticmethod
    def of(loop: Loop, operands: Sequence[Operand]) -> Scan | None:
        """None for another kind of loop: derivatives by rows of nothing, or turns that are counted
        in no way that is known here, or a way back that needs all rows in each turn.
        """
        rows = None if loop.carried else _most_turns(loop, operands)
        inputs = loop.body.graph.inputs
        if rows is None or not any(_has_rows(inputs[int(k)], rows) for k in loop.by):
            return None
        found = Scan(loop, rows)
        return None if any(_has_rows(inputs[k], rows) for k in found.stacked) else found

    # --- the loop itself, which keeps rows ---

    def stacks(self, types: Sequence[TensorType], rows: Any) -> list[TensorType]:
        """The types of the stacks of what has these."""
        return [TensorType(t.dtype, (rows, *t.shape)) for t in types]

    def _took(self, draft: Draft) -> tuple[Var, list[Var]]:
        """The count and the stacks, beside what a draft of the body takes."""
        kept = [draft.inputs[k] for k in self.stacked]
        (turn,) = draft.take([("turn", COUNT)])
        types = self.stacks([v.type for v in kept], self.rows)
        return turn, draft.take(zip([f"{v.name}_rows" for v in kept], types, strict=True))

    def _once(self, kind: str, suffix: str, make: Any) -> str:
        loop = self.loop
        return loop._once(kind, suffix, make, loop.by, loop.tensors)

    def test(self) -> str:
        """The loop's test, beside stacks."""
        return self._once("scan test", "has_rows", self._test)

    def _test(self, draft: Draft) -> Graph:
        values, name = list(draft.inputs), self.loop.test_name
        self._took(draft)
        found = draft.builder.call(name, values, [("holds", TRUTH)])
        return draft.finish(self.test(), found, comment=[f"{name}, beside what is kept."])

    def kept(self) -> str:
        """The loop's body, which keeps what it begins with."""
        return self._once("scan body", "kept", self._kept)

    def _kept(self, draft: Draft) -> Graph:
        values, body = list(draft.inputs), self.loop.body_name
        turn, stacks = self._took(draft)
        b = draft.builder
        new = b.call(body, values, [(f"new_{v.name}", v.type) for v in values])
        place = b.named("place", "reshape", turn, shape=(1,))
        rows = [
            b.named(f"{values[k].name}_kept", "scatter_nd", s, place, values[k])
            for k, s in zip(self.stacked, stacks, strict=True)
        ]
        following = b.named("next", "add", turn, 1)
        about = f"{body}, which keeps what the way back needs as rows, one for each turn."
        return draft.finish(self.kept(), [*new, following, *rows], comment=[about])

    # --- the way back ---

    def _turn(self, draft: Draft) -> _Turn:
        loop, passes = self.loop, self.loop.passes
        values, by = list(draft.inputs), (*loop.by, *loop.tensors)
        (left,) = draft.take([("left", COUNT)])
        targets = passes.targets(draft, loop.body_instance, (), by)
        seeds = draft.take([(f"d_after_{v.name}", v.type) for v in targets])
        _, _, results = passes.went(loop.body_instance, (), by, False, draft)
        gradients: dict[str, Var] = {}
        for k, seed in zip(by, seeds, strict=True):
            if isinstance(k, int):
                draft.seed(gradients, results[k], seed)
            else:
                accumulate(draft.builder, gradients, Var(k, seed.type), seed)
        found = draft.filled(draft.come_back(gradients, targets), targets)
        assert draft.forward is not None
        taped = [e.operands[1] for e in draft.forward.taped if e.op.name == "gather"]
        _add_rows_in_place(draft.builder, {v.name for v in taped if not v.type.rank})
        return _Turn(draft, values, left, seeds, found)

    def _needed(self) -> list[int]:
        """The values that a turn's derivatives need, by place."""
        turn = self._turn(self.loop.passes.draft(self.loop.body_instance, ()))
        live = {v.name for v in turn.found}
        live_statements(turn.draft.builder.statements, live, set())
        return [k for k, v in enumerate(turn.values) if v.name in live]

    def back(self) -> str:
        """The body of the way back."""
        return self._once("scan back", "turned_back", self._back)

    def _back(self, draft: Draft) -> Graph:
        turn = self._turn(draft)
        b, values = draft.builder, turn.values
        constant, stacks = self._back_inputs(draft, turn.left, values, turn.seeds)
        statements, b.statements = b.statements, []
        left = b.named("turn", "sub", turn.left, 1)
        for k, stack in zip(self.stacked, stacks, strict=True):
            row = b.gather(stack, left, axis=0)
            (made,) = b.statements[-1:]
            assert isinstance(made, Apply) and row.type == values[k].type
            b.statements[-1] = replace(made, results=(Binding(Name(values[k].name), None),))
        b.statements += statements
        about = f"Derivatives through a turn of {self.loop.body_name}, from what was kept of it."
        found = [left, *constant, *stacks, *turn.found]
        return draft.finish(self.back(), found, comment=[about])

    def _back_inputs(
        self, draft: Draft, left: Var, values: list[Var], seeds: list[Var]
    ) -> tuple[list[Var], list[Var]]:
        """Sets the inputs: those that are needed, and stacks in place of what changes."""
        constant = [values[k] for k in self.constant]
        types = self.stacks([values[k].type for k in self.stacked], self.rows)
        names = [f"{values[k].name}_rows" for k in self.stacked]
        stacks = draft.take(zip(names, types, strict=True))
        draft.inputs[:] = [left, *constant, *stacks, *seeds]
        return constant, stacks

    def more(self) -> str:
        """Its test."""
        return self._once("scan more", "turns_left", self._more)

    def _more(self, draft: Draft) -> Graph:
        loop, values = self.loop, list(draft.inputs)
        (left,) = draft.take([("left", COUNT)])
        targets = loop.passes.targets(draft, loop.body_instance, (), (*loop.by, *loop.tensors))
        seeds = draft.take([(f"d_after_{v.name}", v.type) for v in targets])
        self._back_inputs(draft, left, values, seeds)
        found = draft.builder.named("more", "greater", left, 0)
        about = f"Whether turns of {loop.body_name} are left to go back through."
        return draft.finish(self.more(), [found], comment=[about])

    # --- where the loop stands ---

    def write(
        self, forward: Forward, index: int, results: Sequence[Var], begin: Sequence[Operand],
        builder: Builder, seeds: Sequence[Var], derivatives: Sequence[tuple[str, TensorType]],
    ) -> list[Var]:  # fmt: skip
        """Lets the loop, statement number `index` with these `results`, keep rows, and writes the
        way back through it; its derivatives. `begin`: what it begins with.
        """
        kept = self._keep(forward, index, results, begin)
        constant = [begin[k] for k in self.constant]
        names = [
            (f"{r.name}_left", r.type) for r in (kept[0], *(results[k] for k in self.constant))
        ]
        names += [(f"{v.name}_read", v.type) for v in kept[1:]]
        count = len(names)
        sums = [builder.full(shape=t.shape, value=0.0, dtype=t.dtype)
                for _, t in derivatives[len(seeds) :]]  # fmt: skip
        limit = Attr(Name("limit"), self.loop.limit)
        attrs = (*_graphs(self.more(), self.back()), limit)
        given = [kept[0], *constant, *kept[1:], *seeds, *sums]
        return builder.call("while", given, [*names, *derivatives], attrs)[count:]

    def _keep(
        self, forward: Forward, index: int, results: Sequence[Var], begin: Sequence[Operand]
    ) -> list[Var]:
        """The number of turns, and the stacks, as further results of the loop."""
        b, statement = forward.builder, forward.builder.statements[index]
        assert isinstance(statement, Apply)
        given = [o.type if isinstance(o, Var) else o for o in begin]
        symbols, _ = unify(self.loop.body.graph, given)
        (rows,) = substitute(TensorType(COUNT.dtype, (self.rows,)), symbols).shape
        before, b.statements = b.statements, []
        here, b.at = b.at, statement.at
        inputs = self.loop.body.graph.inputs
        names = [inputs[k].name.text for k in self.stacked]
        types = self.stacks([results[k].type for k in self.stacked], rows)
        empty = [
            b.named(f"{n}_no_rows", "zeros", shape=t.shape, dtype=t.dtype)
            for n, t in zip(names, types, strict=True)
        ]
        made, b.statements, b.at = b.statements, before, here
        found = [Var(b.fresh("turns"), COUNT)]
        found += [Var(b.fresh(f"{n}_rows"), t) for n, t in zip(names, types, strict=True)]
        graphs = {a.name.text: a for a in _graphs(self.test(), self.kept())}
        b.statements[index : index + 1] = [
            *made,
            replace(
                statement,
                results=(*statement.results, *(Binding(Name(v.name), None) for v in found)),
                operands=(*statement.operands, Literal(0), *(Name(v.name) for v in empty)),
                attrs=tuple(graphs.get(a.name.text, a) for a in statement.attrs),
            ),
        ]
        forward.kept = {k + len(made) if k >= index else k for k in forward.kept}
        return found


def _graphs(test: str, body: str) -> tuple[Attr, Attr]:
    return Attr(Name("test"), Ref(test)), Attr(Name("body"), Ref(body))


# --- what a loop is -------------------------------------------------------------------------------


def _returned(graph: VerifiedGraph) -> list[str]:
    last = graph.graph.body[-1]
    assert isinstance(last, Return)
    return [n.text for n in last.values]


def _has_rows(binding: Binding, rows: Any) -> bool:
    assert binding.type is not None
    return bool(binding.type.rank) and binding.type.shape[0] == rows


def _made(graph: VerifiedGraph, name: str) -> Apply | None:
    found = (s for s in graph.graph.body if isinstance(s, Apply))
    return next((s for s in found if any(r.name.text == name for r in s.results)), None)


def _most_turns(loop: Loop, operands: Sequence[Operand]) -> Any:
    """How many turns the loop has at the most, in the body's symbols, or None: it counts from 0, or
    more, in ones, as long as that is less than a number or the extent of an axis.
    """
    test = loop.family.verified.graphs[loop.test_name]
    compared = _made(test, _returned(test)[0])
    if compared is None or compared.callee.text != "less":
        return None
    count, most = compared.operands
    inputs = [b.name.text for b in test.graph.inputs]
    if not isinstance(count, Name) or count.text not in inputs:
        return None
    k = inputs.index(count.text)
    begin, name = operands[k], loop.body.graph.inputs[k].name.text
    step = _made(loop.body, _returned(loop.body)[k])
    if isinstance(begin, Var) or begin < 0 or step is None or step.callee.text != "add":
        return None
    if [getattr(o, "text", None) or getattr(o, "value", None) for o in step.operands] != [name, 1]:
        return None
    if isinstance(most, Literal):
        return most.value if isinstance(most.value, int) and most.value > 0 else None
    return _extent(loop, test, most.text)


def _extent(loop: Loop, test: VerifiedGraph, name: str) -> Any:
    """The size of an axis that a value of the test is, in the body's symbols."""
    made, body = _made(test, name), test.graph.body
    if made is None or made.callee.text != "extent":
        return None
    application = next(a for s, a in zip(body, test.applications, strict=True) if s is made)
    of = application.attrs["of"]  # pyright: ignore[reportOptionalMemberAccess]
    if len(of) != 1:
        return None
    types = [b.type for b in loop.body.graph.inputs]
    symbols, _ = unify(test.graph, types)  # pyright: ignore[reportArgumentType]
    return substitute(TensorType(COUNT.dtype, tuple(of)), symbols).shape[0]


def _add_rows_in_place(b: Builder, indices: set[str]) -> None:
    """Writes ``add(x, gather_grad(row, t))`` as what adds that row to x, where t is one of some
    `indices`.
    """
    made = {s.results[0].name.text: s for s in b.statements if isinstance(s, Apply)}
    for at in reversed(range(len(b.statements))):
        s = b.statements[at]
        if not isinstance(s, Apply) or s.callee.text != "add":
            continue
        rows = _rows_added(s, made)
        if rows is None or getattr(rows.operands[1], "text", None) not in indices:
            continue
        place = b.fresh(f"{rows.results[0].name.text}_place")
        b.statements[at : at + 1] = [
            replace(rows, results=(Binding(Name(place), None),), callee=Name("reshape"),
                    operands=rows.operands[1:], attrs=(Attr(Name("shape"), (1,)),)),
            replace(s, callee=Name("scatter_nd_add"),
                    operands=(s.operands[0], Name(place), rows.operands[0])),
        ]  # fmt: skip


def _rows_added(s: Apply, made: dict[str, Apply]) -> Apply | None:
    second = s.operands[1]
    found = made.get(second.text) if isinstance(second, Name) else None
    if found is None or found.callee.text != "gather_grad":
        return None
    attrs = {a.name.text: a.value for a in found.attrs}
    return found if attrs.get("axis", 0) == 0 and attrs.get("ignored") is None else None
