"""The way back through a `while`.

The loop counts its turns. Its gradient goes the same way once more, each turn within the one
before, so that a turn's values stand in its frame, and hands the derivatives from the last turn up
to the first. A loop of more than `MOST_TURNS` is halved until its parts are short: the second half
is gone back through first, from the values that the first half computes. So a turn is computed
again once if the loop is short, and once more for each halving; what is kept is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from opstep.runtime.ir.calls import unify
from opstep.runtime.ir.graph import Attr, Graph, Name
from opstep.runtime.ir.op import Mismatch, Ref
from opstep.runtime.ir.types import TensorType, boolean, i32
from opstep.runtime.ir.verified import VerifiedGraph
from opstep.runtime.transforms.backward import GradientError, accumulate
from opstep.runtime.transforms.builder import Var
from opstep.runtime.transforms.dependence import Key
from opstep.runtime.transforms.family import Draft, Family, Instance
from opstep.runtime.transforms.forward import Forward

MOST_TURNS = 200  # that are gone back through one within another
COUNT = TensorType(i32, ())
TRUTH = TensorType(boolean, ())


class Passes(Protocol):
    """What a loop needs of who writes control flow."""

    family: Family

    def pure(self, graph: Instance, carried: tuple[str, ...], updated: tuple[str, ...]) -> str: ...

    def draft(self, graph: Instance, carried: Sequence[str]) -> Draft: ...

    def went(
        self, graph: Instance, carried: Sequence[str], by: Sequence[Key], asserts: bool,
        draft: Draft | None = None,
    ) -> tuple[Draft, Forward, list]: ...  # fmt: skip

    def targets(
        self, draft: Draft, graph: Instance, carried: Sequence[str], by: Sequence[Key]
    ) -> list[Var]: ...


class Loop:
    """The graphs of one loop. `carried`: named tensors that it carries as values; `by`: the carried
    values that derivatives are by; `tensors`: those that it reads and derivatives are by.
    """

    def __init__(
        self, passes: Passes, attrs: Any, instances: Mapping[str, Instance],
        carried: tuple[str, ...], by: tuple[Key, ...], tensors: tuple[str, ...],
    ):  # fmt: skip
        self.passes = passes
        self.family = passes.family
        self.test_name: str = attrs["test"].name
        self.body_name: str = attrs["body"].name
        self.test_instance = instances[self.test_name]
        self.body_instance = instances[self.body_name]
        self.limit: int = attrs["limit"]
        self.carried = carried
        self.by = by
        self.tensors = tensors
        self._check()

    @property
    def body(self) -> VerifiedGraph:
        return self.family.verified.graphs[self.body_name]

    def _check(self) -> None:
        """The graphs that are written take what the body takes, for any sizes."""
        types = [b.type for b in self.body.graph.inputs]
        hint = "write the types of its inputs and results, and of its test's, with the same symbols"
        try:
            unify(self.family.verified.graphs[self.test_name].graph, types)  # pyright: ignore[reportArgumentType]
            fits = types == list(self.body.graph.results)
        except Mismatch:
            fits = False
        if not fits:
            message = f"no gradient is taken through {self.body_name}, which fits its loop for "
            raise GradientError(message + "some sizes only", None, hint)

    def _once(self, kind: str, suffix: str, make: Callable[[Draft], Graph], *key: Any) -> str:
        """The name of a graph of this kind, which is made the first time."""
        family, key = (
            self.family,
            (kind, self.test_instance, self.body_instance, self.carried, *key),
        )
        if key not in family.names:
            family.names[key] = family.name(f"{self.body_name}_{suffix}")
            draft = self.passes.draft(self.body_instance, self.carried)
            family.add(make(draft))
        return family.names[key]

    # --- the loop itself ---

    def test(self) -> str:
        """Its test, beside a count."""
        return self._once("test", "goes_on", self._test)

    def _test(self, draft: Draft) -> Graph:
        touched = self.family.effects(self.test_name).touches
        carried = tuple(t for t in self.carried if t in touched)
        test = self.passes.pure(self.test_instance, carried, ()) if carried else self.test_name
        keys = (*range(len(self.body.graph.inputs)), *carried)
        values = self.passes.targets(draft, self.body_instance, self.carried, keys)
        draft.take([("turn", COUNT)])
        found = draft.builder.call(test, values, [("holds", TRUTH)])
        return draft.finish(self.test(), found, comment=[f"{self.test_name}, beside a count."])

    def counted(self) -> str:
        """Its body, which counts."""
        return self._once("counted", "counted", self._counted)

    def _counted(self, draft: Draft) -> Graph:
        body = self.body_name
        if self.carried:
            body = self.passes.pure(self.body_instance, self.carried, self.carried)
        values = list(draft.inputs)
        (turn,) = draft.take([("turn", COUNT)])
        new = draft.builder.call(body, values, [(f"new_{v.name}", v.type) for v in values])
        following = draft.builder.named("next", "add", turn, 1)
        about = f"{self.body_name}, and a count of its turns."
        return draft.finish(self.counted(), [*new, following], comment=[about])

    # --- the way back ---

    def back(self) -> str:
        """The graph that takes what the loop began with, its number of turns and the derivatives by
        what it gave; it returns those by what it began with, then by `tensors`.
        """
        return self._back_graph("back", "back", self._back)

    def _back_graph(self, kind: str, suffix: str, make: Callable[[Draft], Graph]) -> str:
        long = self.limit if self.limit > MOST_TURNS else 0
        return self._once(kind, suffix, make, self.by, self.tensors, long)

    def _inputs(self, draft: Draft) -> tuple[list[Var], Var, list[Var]]:
        """What is carried, the number of turns, and derivatives."""
        carried = list(draft.inputs)
        (turns,) = draft.take([("turns", COUNT)])
        by = self.passes.targets(draft, self.body_instance, self.carried, self.by)
        seeds = draft.take([(f"d_after_{v.name}", v.type) for v in by])
        return carried, turns, seeds

    def _derivatives(self, draft: Draft, way: str = "") -> list[tuple[str, TensorType]]:
        """Names and types of what the graphs return."""
        values = self.passes.targets(
            draft, self.body_instance, self.carried, (*self.by, *self.tensors)
        )
        return [(f"d_{way}{v.name}", v.type) for v in values]

    def _back(self, draft: Draft) -> Graph:
        values, turns, seeds = self._inputs(draft)
        b = draft.builder
        if self.limit > MOST_TURNS:
            rounded = b.named("rounded_up", "add", turns, MOST_TURNS - 1)
            blocks = b.named("blocks", "floor_div", rounded, MOST_TURNS)
            which = b.named("which", "minimum", blocks, 2)
            cases = (Ref(self.end()), Ref(self.turn()), Ref(self.halves()))
        else:
            which = b.named("which", "minimum", turns, 1)
            cases = (Ref(self.end()), Ref(self.turn()))
        attrs = (Attr(Name("cases"), cases),)
        operands = [which, *values, turns, *seeds]
        found = b.call("switch", operands, self._derivatives(draft), attrs)
        about = f"Derivatives through the turns of {self.body_name}, from the last to the first."
        return draft.finish(self.back(), found, comment=[about])

    def end(self) -> str:
        """No turn: the derivatives are those by what the loop gave."""
        return self._back_graph("end", "end", self._end)

    def _end(self, draft: Draft) -> Graph:
        _, _, seeds = self._inputs(draft)
        tensors = self.passes.targets(draft, self.body_instance, self.carried, self.tensors)
        found = [*seeds, *map(draft.zeros, tensors)]
        about = f"After the last turn of {self.body_name}: here the way back begins."
        return draft.finish(self.end(), found, comment=[about])

    def turn(self) -> str:
        """One turn once more, what comes after it, and then its derivatives."""
        return self._back_graph("turn", "turn", self._turn)

    def _turn(self, draft: Draft) -> Graph:
        _, turns, seeds = self._inputs(draft)
        by = (*self.by, *self.tensors)
        _, forward, results = self.passes.went(self.body_instance, self.carried, by, False, draft)
        after = dict(enumerate(results)) | {t: forward.versions[t] for t in self.carried}
        b = draft.builder
        left = b.named("left", "sub", turns, 1)
        more = b.named("more", "greater", left, 0)
        graphs = (("then", self.turn()), ("else", self.end()))
        attrs = tuple(Attr(Name(k), Ref(v)) for k, v in graphs)
        operands = [more, *after.values(), left, *seeds]
        found = b.call("cond", operands, self._derivatives(draft, "next_"), attrs)
        gradients: dict[str, Var] = {}
        for k, gradient in zip(by, found, strict=True):
            if k in after:
                draft.seed(gradients, after[k], gradient)
            else:
                accumulate(b, gradients, Var(str(k), gradient.type), gradient)
        targets = self.passes.targets(draft, self.body_instance, self.carried, by)
        back = draft.filled(draft.come_back(gradients, targets), targets)
        about = f"A turn of {self.body_name} once more; then those after it, and its derivatives."
        return draft.finish(self.turn(), back, comment=[about])

    def halves(self) -> str:
        """Many turns: those of the second half first."""
        return self._back_graph("halves", "halves", self._halves)

    def _halves(self, draft: Draft) -> Graph:
        values, turns, seeds = self._inputs(draft)
        b = draft.builder
        half = b.named("half", "floor_div", turns, 2)
        start = b.named("start", "neg", half)
        graphs = (("test", Ref(self.below())), ("body", Ref(self.counted())), ("limit", self.limit))
        attrs = tuple(Attr(Name(k), v) for k, v in graphs)
        middle = [*((f"middle_{v.name}", v.type) for v in values), ("zero", COUNT)]
        *middle, _ = b.call("while", [*values, start], middle, attrs)
        rest = b.named("rest", "sub", turns, half)
        by = [(f"second_{v.name}", v.type) for v in values]
        tensors = self.passes.targets(draft, self.body_instance, self.carried, self.tensors)
        sums = [b.named(f"no_{x.name}", "full", shape=x.shape, value=0.0, dtype=x.dtype)
                for x in tensors]  # fmt: skip
        graphs = (("test", Ref(self.either())), ("body", Ref(self.half())), ("limit", 2))
        attrs = tuple(Attr(Name(k), v) for k, v in graphs)
        given = [*middle, rest, *values, half, *seeds, *sums, 0]
        count, names = len(values), self._derivatives(draft)
        around = [*by, ("n", COUNT), *((f"first_{v.name}", v.type) for v in values), ("m", COUNT)]
        found = b.call("while", given, [*around, *names, ("both", COUNT)], attrs)
        about = (
            f"More than {MOST_TURNS} turns of {self.body_name}: halves, the second of them first."
        )
        return draft.finish(self.halves(), found[2 * count + 2 : -1], comment=[about])

    def half(self) -> str:
        """Derivatives through the one half, and what the other begins with: a loop's body, so that
        both use the same memory.
        """
        return self._back_graph("half", "half", self._half)

    def either(self) -> str:
        """The test of that loop."""
        return self._back_graph("either", "first_half_left", self._either)

    def _half_inputs(self, draft: Draft) -> tuple[list[Var], list[Var], list[Var], Var]:
        """What a half begins with, and its turns; those of the first; derivatives, and those by
        tensors so far; how many halves are done.
        """
        values = list(draft.inputs)
        half = [*values, *draft.take([("turns", COUNT)])]
        first = draft.take([*((f"first_{v.name}", v.type) for v in values), ("first_turns", COUNT)])
        keys = (*self.by, *self.tensors)
        by = self.passes.targets(draft, self.body_instance, self.carried, keys)
        seeds = draft.take((f"d_after_{v.name}", v.type) for v in by)
        (done,) = draft.take([("done", COUNT)])
        return half, first, seeds, done

    def _half(self, draft: Draft) -> Graph:
        half, first, seeds, done = self._half_inputs(draft)
        b, count = draft.builder, len(self.by)
        found = b.call(self.back(), [*half, *seeds[:count]], self._derivatives(draft))
        for k in range(count, len(found)):
            name = f"d_all_{self.tensors[k - count]}"
            found[k] = b.named(name, "add", seeds[k], found[k])
        following = b.named("next", "add", done, 1)
        about = f"Derivatives through one half of the turns of {self.body_name}; next is the first."
        return draft.finish(self.half(), [*first, *first, *found, following], comment=[about])

    def _either(self, draft: Draft) -> Graph:
        *_, done = self._half_inputs(draft)
        found = draft.builder.named("more", "less", done, 2)
        about = f"Whether a half of the turns of {self.body_name} is left."
        return draft.finish(self.either(), [found], comment=[about])

    def below(self) -> str:
        """The test of a number of turns: whether a count that begins below zero still is."""
        return self._once("below", "below_zero", self._below)

    def _below(self, draft: Draft) -> Graph:
        (turn,) = draft.take([("turn", COUNT)])
        found = draft.builder.named("more", "less", turn, 0)
        about = f"Whether turns of {self.body_name} are left, whose count ends at 0."
        return draft.finish(self.below(), [found], comment=[about])
