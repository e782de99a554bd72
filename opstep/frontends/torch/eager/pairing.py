"""Two scripts, or one in two settings: the first op whose results part by more than rounding."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opstep.differing import judging
from opstep.differing.elements import Elements
from opstep.differing.errors import TOLERANCE, coarser, error_of
from opstep.frontends.torch.eager import traces
from opstep.frontends.torch.eager.ops import as_call, by_name
from opstep.frontends.torch.eager.traces import NO_VALUE, Op, Operand, Slot, Trace
from opstep.frontends.torch.evaluating import array_of, results_of
from opstep.frontends.torch.sources import Frame
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import dtype_of

BUDGET = 1 << 30  # bytes of values that are kept of each side
STEPS = 3  # a schedule or a momentum shows after the first
SLACK = 8  # of rounding, where one side computes by other ops
GROWTH = 16  # how much of it an op may make of what its operands differ by
READ = 2.0**-6  # by how much a number that Python read may differ, where rounding has set in
_TYPES = {"dtype", "device", "layout", "pin_memory", "memory_format", "generator", "non_blocking"}


@dataclass
class Parting:
    """The place at which two scripts part. `kind`: ``attribute``, ``only`` (ops of one side alone),
    ``operands`` (others), ``input``, ``random``, ``shape``, ``result``; `a`, `b`: the ops, `frames`
    the lines of both.
    """

    kind: str
    message: str
    a: Op | None
    b: Op | None
    frames: tuple[Frame | None, Frame | None]
    elements: Elements | None = None


@dataclass
class ScriptDifference:
    """`first`: None where nothing differs but by rounding. `notes`: what differs without an effect,
    and `settings`, of what was built.
    """

    names: tuple[str, str]
    compared: int
    steps: tuple[int, int]
    codes: tuple[int, int]
    first: Parting | None = None
    notes: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    rounded: bool = False

    @property
    def same(self) -> bool:
        return self.first is None


def diff_scripts(
    a: Sequence[str], b: Sequence[str], steps: int = STEPS, budget: int = BUDGET
) -> ScriptDifference:
    """Runs both, each a script with its arguments, one after the other, for so many steps of their
    optimizers. Raises `InputError` where one cannot be run.
    """
    return next(iter(diff_pairs([(a, b)], steps, budget)))


def diff_pairs(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]], steps: int = STEPS, budget: int = BUDGET
) -> Iterator[ScriptDifference]:
    """`diff_scripts` for each."""
    with tempfile.TemporaryDirectory(prefix="opstep-diff-") as folder:
        given = [side for pair in pairs for side in pair]
        jobs = [(str(Path(folder, str(k))), *side) for k, side in enumerate(given)]
        for job in jobs:
            Path(job[0]).mkdir()
        main = f"import sys; from {traces.__name__} import main; main(*sys.argv[1:])"
        words = [sys.executable, "-c", main, str(steps), str(budget), json.dumps(jobs)]
        subprocess.run(words, stdout=2, check=False)
        for k in range(0, len(jobs), 2):
            sides = [_Side(*job) for job in jobs[k : k + 2]]
            yield _Comparer(*sides).compared((jobs[k][1], jobs[k + 1][1]))


class _Side:
    def __init__(self, folder: str, script: str, *arguments: str):
        found = Path(folder, "trace.pickle")
        if not found.exists():
            raise InputError(f"{script} ended before its ops could be compared")
        self.trace: Trace = pickle.loads(found.read_bytes())
        self.ops = self.trace.ops
        size = Path(folder, "values.bin").stat().st_size
        self._bytes = (
            np.memmap(Path(folder, "values.bin"), np.uint8, "r") if size else np.empty(0, "u1")
        )

    def value(self, k: int) -> torch.Tensor | None:
        """The elements that were kept; None where there are none."""
        if k == NO_VALUE:
            return None
        at, dtype, shape, every = self.trace.values[k]
        count = -(-math.prod(shape) // every)
        held = torch.from_numpy(self._bytes[at : at + count * dtype.itemsize].copy()).view(dtype)
        return held.reshape(shape) if every == 1 else held

    def shape(self, k: int) -> tuple[int, ...] | None:
        return None if k == NO_VALUE else self.trace.values[k].shape


def aligned(a: Sequence[Any], b: Sequence[Any], *keys: Callable[[Any], Any]) -> dict[int, int]:
    """Pairs items of a with those of b: by the first key; what that leaves between, by the next."""
    ka, kb = list(map(keys[0], a)), list(map(keys[0], b))
    start = next((k for k, (x, y) in enumerate(zip(ka, kb, strict=False)) if x != y), None)
    start = min(len(a), len(b)) if start is None else start
    found = {k: k for k in range(start)}
    matcher = SequenceMatcher(None, ka[start:], kb[start:], autojunk=False)
    for tag, i0, i1, j0, j1 in matcher.get_opcodes():
        i, j = i0 + start, j0 + start
        if tag == "equal":
            found |= {i + k: j + k for k in range(i1 - i0)}
        elif tag == "replace" and keys[1:]:
            inner = aligned(a[i : i1 + start], b[j : j1 + start], *keys[1:])
            found |= {i + x: j + y for x, y in inner.items()}
    return found


class _Comparer:
    def __init__(self, a: _Side, b: _Side):
        self._a, self._b = a, b
        self.pairs = aligned(
            a.ops, b.ops,
            lambda o: (o.phase, o.name, o.module, o.text, o.frames[:1] and o.frames[0].function),
            lambda o: (o.phase, o.name),
        )  # fmt: skip
        self._back = {j: i for i, j in self.pairs.items()}
        # by op of a: how far its results are apart by rounding, relative to their norm
        self._drift: dict[int, float] = {}
        self._notes: dict[str, None] = {}
        self._types = ""

    def compared(self, names: tuple[str, str]) -> ScriptDifference:
        a, b = self._a.trace, self._b.trace
        found = ScriptDifference(names, len(self.pairs), (a.steps, b.steps), (a.code, b.code))
        found.settings = list(dict.fromkeys(self._settings()))
        apart: dict[int, Parting] = {}
        for i, j in list(self.pairs.items()):
            if (part := self._parts(i, j)) is not None:
                apart[i] = part
                del self.pairs[i], self._back[j]  # what follows from it is compared by value
        found.first = next((p for i, p in apart.items() if self._lasts(i)), None)
        at = (found.first.a or found.first.b) if found.first is not None else None
        if at is not None and at.phase != "backward":
            return found
        for one, side, back in (("a", self._a, self.pairs), ("b", self._b, self._back)):
            alone = [o for k, o in enumerate(side.ops) if k not in back]
            if alone and (found.first is None or alone[0].phase == "forward"):
                self._notes[f"only {one} runs {_short(alone[0])}: {_line(_frame(alone[0]))}"] = None
        found.rounded = bool(self._drift)
        found.notes = [*self._notes, *([self._types] if self._types else [])]
        return found

    def _lasts(self, i: int) -> bool:
        """Whether it reaches what nothing is computed of any more, a loss or a parameter: what is
        only written otherwise becomes the same again.
        """
        reached = {i}
        for k in range(i + 1, len(self._a.ops)):
            if k not in self.pairs and any(o.op in reached for o in self._a.ops[k].operands):
                reached.add(k)
        used = {o.op for op in self._a.ops for o in op.operands}
        return not reached <= used

    # --- one pair ---

    def _parts(self, i: int, j: int) -> Parting | None:
        a, b = self._a.ops[i], self._b.ops[j]
        for x, y in zip(a.operands, b.operands, strict=False):
            if (found := self._operand(i, j, x, y)) is not None:
                return found
            self._note_types(a, b, x, y)
        frames = _frame(a), _frame(b)
        pairs = [
            (self._a.value(x), self._b.value(y)) for x, y in zip(a.results, b.results, strict=False)
        ]
        same = a.shapes == b.shapes and all(
            x is None or y is None or torch.equal(x, y) for x, y in pairs
        )
        if other := self._attributes(a, b):
            if not same:
                elements = next(filter(None, (self._elements(*p) for p in pairs)), None)
                return Parting("attribute", f"{_short(a)}: {other}", a, b, frames, elements)
            self._notes[f"{_short(a)}: {other}, without effect: {_line(frames[0])}"] = None
        if same:
            return None
        if a.shapes != b.shapes:
            what = f"{_short(a)} gives {a.shapes} in a, {b.shapes} in b"
            return Parting("shape", what, a, b, frames)
        for k, (x, y) in enumerate(pairs):
            if x is None or y is None or torch.equal(x, y):
                continue
            if (found := self._result(i, j, k, x, y)) is not None:
                return found
        return None

    def _result(self, i: int, j: int, k: int, x: Any, y: Any) -> Parting | None:
        """Of ops that are alike and whose results are not."""
        a, b = self._a.ops[i], self._b.ops[j]
        elements, frames = self._elements(x, y), (_frame(a), _frame(b))
        if a.random and elements is not None:
            for one, side, known, at in (
                ("a", self._a, self.pairs, i),
                ("b", self._b, self._back, j),
            ):
                before = [n for n in range(at) if side.ops[n].random and n not in known]
                if before:
                    return self._alone(one, before[-1], a if one == "b" else b, elements)
            return Parting(
                "random", f"{_short(a)} draws other numbers, by another seed or after other draws",
                a, b, frames, elements,
            )  # fmt: skip
        error = error_of(_array(x), _array(y))
        if elements is not None and (error.unlike or self._agree(i, j)):
            worst = [self._own(side, op, k, v) for side, op, v in
                     ((self._a, a, x), (self._b, b, y))]  # fmt: skip
            if error.unlike or max(worst) > 1:
                off = "" if error.unlike else f", {'ab'[int(np.argmax(worst))]} is off"
                of = "is finite on one side only" if error.unlike else "differs for equal operands"
                return Parting("result", f"{_short(a)} {of}{off}", a, b, frames, elements)
        self._drift[i] = max(self._drift.get(i, 0.0), error.relative)
        return None

    def _agree(self, i: int, j: int) -> bool:
        """Whether the operands are the same, but for rounding."""
        pairs = zip(self._a.ops[i].operands, self._b.ops[j].operands, strict=False)
        values = [(self._a.value(x.value), self._b.value(y.value)) for x, y in pairs]
        return all(x is None or y is None or self._elements(x, y) is None for x, y in values)

    def _operand(self, i: int, j: int, x: Operand, y: Operand) -> Parting | None:
        """Operands that were not made by ops that are alike, or by none."""
        if x.op >= 0 and self.pairs.get(x.op) == y.op and x.result == y.result:
            return None
        v, w = self._a.value(x.value), self._b.value(y.value)
        shapes = self._a.shape(x.value), self._b.shape(y.value)
        elements = None
        if None in shapes or shapes[0] == shapes[1]:
            if v is None or w is None:
                if x.op < 0 or y.op < 0:
                    return None
            else:
                elements = self._elements(v, w, SLACK)
                came = max(self._came(self._a, x), self._came(self._b, y))
                if elements is None or error_of(_array(v), _array(w)).relative < GROWTH * came:
                    return None
        a, b = self._a.ops[i], self._b.ops[j]
        i_alone, j_alone = (
            self._first_alone(self._a, self.pairs, x), self._first_alone(self._b, self._back, y)
        )  # fmt: skip
        if i_alone < 0 and j_alone < 0:
            kind, what = "input", "is given other data"
            if x.op >= 0 or y.op >= 0:
                made = [
                    f"that of {_line(_frame(side.ops[o.op]))}" if o.op >= 0 else "data"
                    for side, o in ((self._a, x), (self._b, y))
                ]
                kind, what = "operands", f"is given another result: {made[0]} in a, {made[1]} in b"
            return Parting(kind, f"{_short(a)} {what}", a, b, (_frame(a), _frame(b)), elements)
        if i_alone >= 0 and j_alone >= 0:
            both = self._a.ops[i_alone], self._b.ops[j_alone]
            what = f"a runs {_short(both[0])}, b {_short(both[1])}"
            return Parting("only", what, *both, (_frame(both[0]), _frame(both[1])), elements)
        one, k, side, o, there = (
            ("a", i_alone, self._b, y, b) if i_alone >= 0 else ("b", j_alone, self._a, x, a)
        )
        made = side.ops[o.op] if o.op >= 0 else there
        return self._alone(one, k, made if made.phase == there.phase else there, elements)

    def _came(self, side: _Side, x: Operand) -> float:
        """The distance, by rounding, of what an operand was made of that both sides have."""
        known = self.pairs if side is self._a else self._back
        worst, left, seen = 0.0, [x.op], set()
        while left:
            k = left.pop()
            if k in known:
                worst = max(worst, self._drift.get(k if side is self._a else known[k], 0.0))
            elif k >= 0 and k not in seen:
                seen.add(k)
                left += [o.op for o in side.ops[k].operands]
        return worst

    def _alone(self, one: str, k: int, nearest: Op, elements: Elements | None) -> Parting:
        """An op that one side alone runs. The line of the other is that of the nearest op of the
        same line, else of what is there instead, in the same function if it is known.
        """
        side, other, known = (
            (self._a, self._b, self.pairs) if one == "a" else (self._b, self._a, self._back)
        )
        here = side.ops[k]
        beside = [
            n for n in sorted(range(len(side.ops)), key=lambda n: abs(n - k))
            if n in known and (o := side.ops[n]).frames[:1] == here.frames[:1] and (
                o.phase == here.phase)
        ]  # fmt: skip
        function = here.frames[0].function if here.frames else ""
        frame = next((f for f in nearest.frames if f.function == function), _frame(nearest))
        frame = _frame(other.ops[known[beside[0]]]) if beside else frame
        ops = (here, None) if one == "a" else (None, here)
        frames = (_frame(here), frame) if one == "a" else (frame, _frame(here))
        return Parting("only", f"only {one} runs {_short(here)}", *ops, frames, elements)

    def _first_alone(self, side: _Side, known: dict[int, int], x: Operand) -> int:
        """The first of the ops that only this side runs on the way to an operand; -1 is none."""
        found, left = -1, [x.op]
        while left:
            k = left.pop()
            if k >= 0 and k not in known and (found < 0 or k <= found):
                found = k if side.ops[k].results != [NO_VALUE] or found < 0 else found
                left += [o.op for o in side.ops[k].operands]
        return found

    # --- values and arguments ---

    def _elements(self, x: Any, y: Any, slack: float = 1.0) -> Elements | None:
        """The difference of two values beyond rounding to the coarser type."""
        if x is None or y is None or x.shape != y.shape:
            return None
        a, b = _array(x), _array(y)
        if not (x.is_floating_point() and y.is_floating_point()):
            return judging.apart(a, b)
        coarse = coarser(dtype_of(a.dtype), dtype_of(b.dtype))
        return judging.apart(a, b, slack * TOLERANCE[coarse.name])

    def _own(self, side: _Side, op: Op, k: int, got: torch.Tensor) -> float:
        """The error that an op adds to its operands' errors, as a multiple of what rounding
        explains; 0 where that cannot be computed again.
        """
        given = [side.value(o.value) for o in op.operands]
        kept = [side.trace.values[o.value].every == 1 for o in op.operands if o.value >= 0]
        if len(kept) < len(given) or not all(kept) or not got.is_floating_point():
            return 0.0
        target = by_name(*op.name)

        def again(rng: np.random.Generator | None = None) -> np.ndarray:
            def wide(v: Any) -> Any:
                if isinstance(v, Slot):
                    return _wide(given[v.operand], rng)
                if isinstance(v, torch.dtype) and v.is_floating_point:
                    return torch.float64
                return [wide(x) for x in v] if isinstance(v, list) else v

            args, kwargs = as_call(target, [wide(v) for v in op.arguments])
            return results_of(target(*args, **kwargs))[k].numpy()

        try:
            size = max((t.numel() for t in given if t is not None), default=1)
            growth = max(1.0, math.sqrt(size / max(got.numel(), 1)))
            return judging.own_error(array_of(got), again(), None, lambda: growth, again).excess
        except (RuntimeError, TypeError, NotImplementedError, IndexError):
            return 0.0

    def _attributes(self, a: Op, b: Op) -> str:
        """The difference of arguments that are no tensors; "" where they do not."""
        names = [x.name for x in by_name(*a.name)._schema.arguments]
        return "; ".join(
            f"{name} is {_shown(x)} in a, {_shown(y)} in b"
            for name, x, y in zip(names, a.arguments, b.arguments, strict=False)
            if name not in _TYPES and not self._alike(x, y)
        )

    def _alike(self, x: Any, y: Any) -> bool:
        if isinstance(x, list) and isinstance(y, list):
            return len(x) == len(y) and all(map(self._alike, x, y))
        if isinstance(x, Slot) or isinstance(y, Slot):
            return isinstance(x, Slot) and isinstance(y, Slot)
        if isinstance(x, torch.dtype) and isinstance(y, torch.dtype):
            return x == y or (x.is_floating_point and y.is_floating_point)
        if isinstance(x, float) and isinstance(y, float):
            drift = max(self._drift.values(), default=0.0)  # numbers that were read of tensors
            close = math.isclose(x, y, rel_tol=min(GROWTH * drift, READ))
            return close or (math.isnan(x) and math.isnan(y))
        return type(x) is type(y) and x == y

    def _note_types(self, a: Op, b: Op, x: Operand, y: Operand) -> None:
        """The place at which element types part first."""
        if self._types or NO_VALUE in (x.value, y.value):
            return
        types = self._a.trace.values[x.value].dtype, self._b.trace.values[y.value].dtype
        if types[0] != types[1]:
            frames = x.cast or _frame(a), y.cast or _frame(b)
            self._types = (
                f"element types part first at {_line(frames[0])} ({types[0]} in a) and "
                f"{_line(frames[1])} ({types[1]} in b)"
            )

    def _settings(self) -> Iterator[str]:
        """Of what the scripts have made and called."""
        a, b = self._a.trace.built, self._b.trace.built
        pairs = aligned(a, b, lambda o: (o.kind, _text(o.frame)), lambda o: o.kind)
        for i, j in pairs.items():
            (kind, at, x), (_, there, y) = a[i], b[j]
            parts = [
                f"{key} is {x[key]} in a, {y[key]} in b"
                for key in x if key in y and not self._alike(x[key], y[key])
            ]  # fmt: skip
            if parts:
                places = " and ".join(dict.fromkeys((_line(at), _line(there))))
                yield f"{kind}: {'; '.join(parts)} ({places})"
        for one, side, known in (("a", a, pairs.keys()), ("b", b, pairs.values())):
            for k in sorted(set(range(len(side))) - set(known)):
                yield f"only {one} has {side[k].kind} ({_line(side[k].frame)})"


def _wide(t: torch.Tensor | None, rng: np.random.Generator | None) -> Any:
    """In f64, moved by its rounding error if there is a generator."""
    if t is None or not t.is_floating_point():
        return t
    wide = t.double()
    if rng is None:
        return wide
    return wide * (1 + torch.finfo(t.dtype).eps * torch.from_numpy(rng.uniform(-1, 1, t.shape)))


def _array(t: torch.Tensor) -> np.ndarray:
    return array_of(torch.view_as_real(t) if t.is_complex() else t)


def _shown(value: Any) -> str:
    return "a tensor" if isinstance(value, Slot) else str(value)


def _short(op: Op) -> str:
    """``softmax (blocks.0.attn), in the backward``"""
    name = op.name[0].partition("::")[2] + (f" ({op.module})" if op.module else "")
    where = {"backward": ", in the backward", "update": ", in the optimizer's step"}
    return name + where.get(op.phase, "") + (f", in step {op.step}" if op.step else "")


def _frame(op: Op) -> Frame | None:
    return op.frames[0] if op.frames else None


def _text(frame: Frame) -> str:
    return traces.linecache.getline(frame.file, frame.line).strip()


def _line(frame: Frame | None) -> str:
    return f"{os.path.relpath(frame.file)}:{frame.line}" if frame else "?"


def report(found: ScriptDifference) -> str:
    """All of it, the lines first."""
    lines = []
    if (first := found.first) is not None:
        for one, frame in zip("ab", first.frames, strict=True):
            lines.append(f"{one}: {_line(frame)}: {_text(frame)}" if frame else f"{one}: no line")
        lines.append(f"  {first.message}")
        if (e := first.elements) is not None:
            at = f"[{', '.join(map(str, e.first))}]" if e.first else "its only element"
            lines.append(f"  {e.differing:,} of {e.of:,} elements differ; at {at} {e.a} and {e.b}")
    else:
        rounded = "nothing but rounding differs" if found.rounded else "nothing differs"
        lines.append(f"{rounded}: {found.compared:,} ops in {max(found.steps)} steps")
    lines += [f"  {note}" for note in found.notes]
    lines += [f"  setting: {text}" for text in found.settings]
    for one, code in zip(found.names, found.codes, strict=True):
        if code:
            lines.append(f"  {one} ended with exit code {code}")
    return "\n".join(lines)


def record(found: ScriptDifference) -> dict[str, Any]:
    """As JSON can hold it."""
    first = found.first
    return {
        **dict(zip("ab", found.names, strict=True)),
        "same": found.same,
        **{k: v for k, v in vars(found).items() if k not in ("names", "first")},
        "first": first
        and {
            "kind": first.kind,
            "message": first.message,
            "lines": [f and f._asdict() for f in first.frames],
            "elements": first.elements and first.elements._asdict(),
        },
    }
