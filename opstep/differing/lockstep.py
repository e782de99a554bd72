"""Runs two sides step by step from the same state, and compares what their ops gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.api.inputs import conform
from opstep.api.settings import RunSettings
from opstep.differing.comparison import Comparison, Difference, OpSite
from opstep.differing.elements import Elements, difference, is_float
from opstep.differing.errors import coarser
from opstep.differing.taps import Key, Tapped, Taps
from opstep.differing.verdict import verdict
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import DType, TensorType, dtype_of
from opstep.runtime.plan.plan import Plan

if TYPE_CHECKING:
    from opstep.api.program import Program

AGAIN = 3  # runs more, to see whether a side gives the same each time

Outputs = Mapping[str, np.ndarray]


class Side:
    """One of the two: a program, and how it is run."""

    def __init__(
        self, name: str, program: Program, graph: str | None, inputs: Mapping[str, Any],
        how: RunSettings, chaos: int | None,
    ):  # fmt: skip
        self.name = name
        self.program = program
        self.graph = program.graph(graph)
        self.inputs = _fitting(self.graph, inputs)
        self.label = str(how)
        self.how = replace(how, chaos=chaos, steps=1)
        self.device = program.on(how.device, self.how.setup)
        self.error: OpstepError | None = None
        self._state: dict[str, np.ndarray] = {}
        steps = [s for plan in self.plans() for s in plan.steps]
        self.updates = any(s.op.name == "update" for s in steps)

    @property
    def text(self) -> str:
        source = self.program.module.source
        return source.text if source else ""

    def types(self) -> dict[str, TensorType]:
        """Of named tensors and inputs."""
        named = {n: d.type for n, d in self.program.verified.tensors.items()}
        return named | {b.name.text: b.type for b in self.graph.inputs if b.type is not None}

    def plans(self) -> list[Plan]:
        """Those that its runs go by."""
        _, types = conform(self.graph, self.inputs, self.program.module.source)
        return self.program.plans(
            self.graph.name.text, types, self.how.policy, self.how.device, setup=self.how.setup
        )

    def tensors(self) -> dict[str, np.ndarray]:
        """All named tensors, as they are."""
        return {name: self.program.params[name] for name in self.program.params}

    def save(self) -> None:
        """What the state is now, a step begins from until it is saved again."""
        if self.updates:
            self._state = self.tensors()

    def run(self, taps: Taps) -> Outputs | None:
        """A step from the saved state; None where it did not come to its end (`error`)."""
        for name, array in self._state.items():
            self.program.params[name] = array
        self.error = None
        try:
            return self.program.run(
                self.graph.name.text, self.inputs, listeners=[taps], **vars(self.how)
            )
        except (InputError, DeviceError):
            raise
        except OpstepError as error:
            self.error = error
            return None


def _fitting(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Floats in the types that the graph's inputs have: both sides are given the same ones."""
    found = dict(inputs)
    for binding in graph.inputs:
        name, t = binding.name.text, binding.type
        array = found.get(name)
        if t is None or t.dtype.is_generic:
            continue
        if t.dtype.is_float and is_float(getattr(array, "dtype", None)):
            with np.errstate(over="ignore"):
                found[name] = np.asarray(array).astype(t.dtype.numpy)
    return found


class Found(NamedTuple):
    """A result that differs, as both sides had it (None: it had not)."""

    order: tuple[int, ...]
    key: Key
    taps: tuple[Tapped | None, Tapped | None]
    kind: str
    elements: Elements | None = None
    arrays: tuple[np.ndarray, np.ndarray] | None = None


class Lockstep:
    """Of two sides."""

    def __init__(self, a: Side, b: Side, rtol: float, atol: float, budget: int):
        self.a = a
        self.b = b
        self.rtol = rtol
        self.atol = atol
        self.budget = budget
        self.coarse = _coarsest(None, a.types(), b.types())
        self.comparison = Comparison((a.label, b.label))
        self.same_text = a.text == b.text and a.graph.name.text == b.graph.name.text

    def run(self, steps: int) -> Comparison:
        """Until the first step that differs."""
        comparison = self.comparison
        if self.a.program is not self.b.program:
            comparison.initial = self._unequal(self.a.tensors(), self.b.tensors())
        self.a.save()
        self.b.save()
        first = None
        for step in range(steps):
            first = self._step(step)
            comparison.steps = step + 1
            if first or comparison.overwritten or comparison.errors:
                break
        comparison.coarse = self.coarse.name if self.coarse else ""
        self._verdicts(first)
        return comparison

    # --- one step ---

    def _step(self, step: int) -> Found | None:
        """The first result of it that differs."""
        comparison, done, first = self.comparison, set[Key](), None
        keys: set[Key] | None = None
        ends: tuple[Outputs | None, Outputs | None] = (None, None)
        states: list[dict[str, np.ndarray]] = []
        while True:
            taps_a, end_a, state_a = self._tapped(self.a, _selects(keys))
            held = {key for key, t in taps_a.found.items() if t.memory is not None}
            taps_b, end_b, state_b = self._tapped(self.b, _selects(held))
            comparison.passes += 1
            if keys is None:
                ends, states = (end_a, end_b), [state_a, state_b]
                self._errors()
                types = ({k: t.type for k, t in taps.found.items()} for taps in (taps_a, taps_b))
                self.coarse = _coarsest(self.coarse, *types)
                first = self._alone(taps_a, taps_b)
            for found in self._differing(taps_a, taps_b, held):
                comparison.differing += 1
                first = found if first is None or found.order < first.order else first
            done |= held
            shared = taps_a.found.keys() & taps_b.found.keys()
            comparison.compared += len(held & shared)
            rest = {
                key
                for key in shared - done
                if first is None or taps_a.found[key].order < first.order
            }
            if not rest or not held:
                comparison.complete = comparison.complete and not rest
                break
            keys = rest
        if first:
            comparison.first = self._described(step, first)
        elif not comparison.errors:
            self._check_overwritten(ends, states)
        self.a.save()
        self.b.save()
        return first

    def _tapped(self, side: Side, selects) -> tuple[Taps, Outputs | None, dict[str, np.ndarray]]:
        """A run of a step with taps; what it gave, and the state behind it."""
        taps = Taps(side.device, self.budget, selects)
        end = side.run(taps)
        return taps, end, side.tensors() if side.updates else {}

    def _differing(self, a: Taps, b: Taps, held: set[Key]):
        """What both have and differs, in the order of the program."""
        for key in sorted(held & b.found.keys(), key=lambda key: a.found[key].order):
            one, other = a.found[key], b.found[key]
            if not alike(one.type, other.type):
                yield Found(one.order, key, (one, other), "type")
                continue
            if other.memory is None:
                continue
            arrays = a.array(one), b.array(other)
            elements = difference(*arrays, self.rtol, self.atol, self.coarse)
            if elements:
                copies = arrays[0].copy(), arrays[1].copy()
                yield Found(one.order, key, (one, other), "values", elements, copies)

    def _alone(self, a: Taps, b: Taps) -> Found | None:
        """The first run of an op that only one side made, where both have the op; `Comparison`
        hears of ops that one program alone has.
        """
        if self.a.error or self.b.error:
            return None
        sites = [{_without_turns(key) for key in taps.found} for taps in (a, b)]
        if not self.same_text:
            self.comparison.alone = (
                sorted({k[-1] for k in sites[0] - sites[1]}),
                sorted({k[-1] for k in sites[1] - sites[0]}),
            )
        both = sites[0] & sites[1]
        only = [
            Found(t.order, key, (t, None) if taps is a else (None, t), "only")
            for taps, others in ((a, b), (b, a))
            for key, t in taps.found.items()
            if key not in others.found and (self.same_text or _without_turns(key) in both)
        ]
        return min(only, key=lambda found: found.order, default=None)

    # --- what is told ---

    def _errors(self) -> None:
        for side in (self.a, self.b):
            if side.error:
                self.comparison.errors[side.name] = side.error

    def _unequal(self, a: Outputs, b: Outputs) -> list[str]:
        """Names of both whose arrays differ."""
        return [
            name
            for name in a
            if name in b
            and (
                not alike(*(TensorType(dtype_of(s[name].dtype), s[name].shape) for s in (a, b)))
                or difference(a[name], b[name], self.rtol, self.atol, self.coarse)
            )
        ]

    def _check_overwritten(self, ends: Any, states: list[dict[str, np.ndarray]]) -> None:
        """All results of ops were the same: so must be what is left in the end."""
        a, b = ends
        found = self._unequal(a, b) if a is not None and b is not None else []
        self.comparison.overwritten = found + self._unequal(*states)

    def _described(self, step: int, found: Found) -> Difference:
        changing = self._changing(found) if found.arrays else ()
        a, b = (None if t is None else placed(t) for t in found.taps)
        return Difference(step, found.kind, a, b, found.elements, changing)

    def _changing(self, found: Found) -> tuple[str, ...]:
        """Sides that give something else when they are run again."""
        names = []
        assert found.arrays is not None
        for side, before in zip((self.a, self.b), found.arrays, strict=True):
            for _ in range(AGAIN):
                taps, _, _ = self._tapped(side, _selects({found.key}))
                again = taps.found.get(found.key)
                if again is None or again.memory is None or difference(taps.array(again), before):
                    names.append(side.name)
                    break
        return tuple(names)

    def _verdicts(self, first: Found | None) -> None:
        for k, side in enumerate((self.a, self.b)):
            tapped = first.taps[k] if first else None
            self.comparison.verdicts[side.name] = (
                verdict(side.plans(), tapped.plan, tapped.number)
                if tapped
                else verdict(side.plans())
            )


def alike(a: TensorType, b: TensorType) -> bool:
    """Whether two results can be compared: floats of any two types can."""
    return a == b or (a.shape == b.shape and a.dtype.is_float and b.dtype.is_float)


def _coarsest(coarsest: DType | None, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> DType | None:
    """The coarsest type of floats that have another on the other side; None where none has."""
    for name in a.keys() & b.keys():
        one, other = a[name].dtype, b[name].dtype
        if one is not other and one.is_float and other.is_float:
            narrow = coarser(one, other)
            coarsest = narrow if coarsest is None else coarser(coarsest, narrow)
    return coarsest


def _selects(keys: set[Key] | None):
    return (lambda key: True) if keys is None else keys.__contains__


def _without_turns(key: Key) -> tuple[str, ...]:
    return tuple(k for k in key if isinstance(k, str))


def placed(tapped: Tapped) -> OpSite:
    """Where its op stands."""
    plan, step, value = tapped.plan, tapped.step, tapped.plan.values[tapped.value]
    source = plan.frames[step.frame].source
    line = source.locate(step.statement.span.start)[0] if source else None
    return OpSite(
        "/".join(str(k) if isinstance(k, str) else f"[{k}]" for k in tapped.key),
        step.op.name,
        value.name,
        value.type,
        tapped.turns,
        str(source.path) if source else None,
        line,
        print_statement(step.statement).strip(),
    )
