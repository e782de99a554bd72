"""Two scripts, or one in two settings: the first op whose results part by more than rounding."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opstep.differing import judging
from opstep.differing.elements import Elements, difference
from opstep.differing.errors import TOLERANCE, coarser, error_of
from opstep.frontends.torch.eager import traces
from opstep.frontends.torch.eager.changes import Changes
from opstep.frontends.torch.eager.partings import (
    ROUNDING,
    Frames,
    Parting,
    ScriptDifference,
    Setting,
    line_of,
    short,
    sizes,
)
from opstep.frontends.torch.eager.traces import NO_VALUE, Op, Operand, Trace, text_of
from opstep.frontends.torch.evaluating import array_of
from opstep.frontends.torch.sources import Frame
from opstep.runtime.ir.types import dtype_of

BUDGET = 1 << 30  # bytes of values that are kept of each side
STEPS = 3  # a schedule or a momentum shows after the first
SLACK = 8  # of rounding, where one side computes by other ops
GROWTH = 16  # how much of it an op may make of what its operands differ by
LARGE = 1e4  # times a small element: not of its scale
SMALL = 1e-30
READ = 2.0**-6  # by how much a number that Python read may differ, where rounding has set in
_SUMS = ("aten.sum", "aten.mean", "aten.add.", "aten.add_.", "aten.sub.", "aten.sub_.")
_VIEWS = ("aten.view.", "aten._unsafe_view.", "aten.t.", "aten.expand.", "aten.transpose.")


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
            sides = [Trace(*job) for job in jobs[k : k + 2]]
            yield _Comparer(*sides).compared((jobs[k][1], jobs[k + 1][1]))


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
    """Ops of both sides that are alike are pairs. By induction, what follows from values that are
    the same but for rounding is: only where operands come from elsewhere, arguments differ, or
    equal operands give other results, values are judged.
    """

    def __init__(self, a: Trace, b: Trace):
        self._sides = a, b
        pairs = aligned(
            a.ops, b.ops,
            lambda o: (o.phase, o.name, o.module, o.text, o.frame and o.frame.function),
            lambda o: (o.phase, o.name),
        )  # fmt: skip
        self._known = pairs, {j: i for i, j in pairs.items()}  # by side
        self._parted: dict[int, int] = {}  # pairs that are none any more
        self._used = {(o.op, o.result) for op in a.ops for o in op.operands} - a.left
        self._drift: dict[int, float] = {}  # by op of a: how far its results are apart by rounding
        self._rounding: Parting | None = None  # where it sets in
        self._notes: dict[str, None] = {}
        self._changes = Changes(a.files, b.files)

    def compared(self, names: tuple[str, str]) -> ScriptDifference:
        a, b = self._sides
        pairs, back = self._known
        found = ScriptDifference(names, len(pairs), (a.steps, b.steps), (a.code, b.code))
        apart: dict[int, Parting] = {}
        for i, j in list(pairs.items()):
            if (part := self._parts(i, j)) is not None:
                apart[i] = part
                self._parted[i] = pairs.pop(i)
                del back[j]  # what follows from it is compared by value
        lasting = next((p for i, p in apart.items() if self._lasts(i)), None)
        settings = list(self._settings())
        found.settings = list(dict.fromkeys(s.text for s in settings))
        slight = (p for p in apart.values() if p.kind == "attribute" and p.elements is None)
        found.first = lasting or self._ended() or self._declared(settings, apart.values())
        found.first = found.first or next(slight, None) or self._rounding
        if found.first is not None:
            self._locate(found.first, settings)
        if found.same:
            for one, side, known in zip("ab", self._sides, self._known, strict=True):
                if alone := [o for k, o in enumerate(side.ops) if k not in known]:
                    note = f"only {one} runs {short(alone[0])}: {line_of(alone[0].frame)}"
                    self._notes[note] = None
            found.notes = [*self._notes]
        return found

    def _lasts(self, i: int) -> bool:
        """Whether it reaches what nothing is computed of any more, a loss or a parameter, or what
        is read: what is only written otherwise becomes the same again.
        """
        ops, reached = self._sides[0].ops, {i}
        for k in range(i + 1, len(ops)):
            if k not in self._known[0] and any(o.op in reached for o in ops[k].operands):
                reached.add(k)
        for k in reached & self._parted.keys():
            a, b = self._pair(k, self._parted[k])
            ends = [r for r in range(len(a.results)) if (k, r) not in self._used]
            if not a.results or any(self._differ(a, b, r) for r in ends):
                return True
        return False

    def _differ(self, a: Op, b: Op, r: int) -> bool:
        """Whether results are apart by more than rounding."""
        if r >= len(b.results) or a.shapes[r] != b.shapes[r]:
            return True
        v, w = self._sides[0].value(a.results[r]), self._sides[1].value(b.results[r])
        return v is not None and w is not None and self._elements(v, w, SLACK) is not None

    def _ended(self) -> Parting | None:
        """The end of a script whose exit code is another's."""
        if self._sides[0].code == self._sides[1].code or not all(s.ops for s in self._sides):
            return None
        s = int(self._sides[1].code != 0)
        here, line = self._sides[s], self._sides[s].ops[-1].frame
        what = f"{'ab'[s]} ended with exit code {here.code} after {short(here.ops[-1])}"
        return self._of_one("ended", what, s, here.ops[-1], self._both(s, line))

    def _declared(self, settings: Sequence[Setting], apart: Iterable[Parting]) -> Parting | None:
        """The first setting that ops use which part, though what follows is the same again but for
        rounding: it is meant, not written otherwise.
        """
        for setting in settings if self._rounding else ():
            for part in apart:
                if setting.is_used(part.a, part.b):
                    return part
            for s, side in enumerate(self._sides):
                for k, op in enumerate(side.ops):
                    if k not in self._known[s] and setting.used[s] in op.uses:
                        return self._alone(s, k, op, None)
        return None

    def _locate(self, part: Parting, settings: Sequence[Setting]) -> None:
        """Finds the lines that it comes from: of a setting that the op uses; those of the op, or of
        a caller's, if they differ; lines that differ of which the op's take something.
        """
        ops = part.a, part.b
        for s in settings if part.kind != ROUNDING else ():
            if s.is_used(*ops):
                part.lines, part.setting = s.frames, s.text
                break
        chains = [op.frames[1:] if op and not part.setting else [] for op in ops]
        for lines in (part.lines, *zip(*chains, strict=False)):
            if None in lines or text_of(lines[0]) != text_of(lines[1]):
                break
        else:
            lines = self._changes.source_of(*part.lines) or part.lines
        known = [k for k in (0, 1) if lines[k] is not None]
        part.lines = self._both(known[0], lines[known[0]]) if len(known) == 1 else lines

    def _both(self, s: int, line: Frame | None) -> Frames:
        """A line of one side, and that of the other in its place, or beside it."""
        other = self._changes.across(s, line) or self._beside(s, line)
        return (line, other) if s == 0 else (other, line)

    def _beside(self, s: int, line: Frame | None) -> Frame | None:
        """The line of the other side that runs where this one does: of an op of this line, else of
        the one whose line is nearest.
        """
        ops, others = self._sides[s].ops, self._sides[1 - s].ops
        there = [
            (abs(f.line - line.line), k)
            for k in self._known[s] if (f := ops[k].frame) and line and f.file == line.file
        ]  # fmt: skip
        return others[self._known[s][min(there)[1]]].frame if there else None

    # --- one pair ---

    def _parts(self, i: int, j: int) -> Parting | None:
        (a, b), (left, right) = self._pair(i, j), self._sides
        for x, y in zip(a.operands, b.operands, strict=False):
            if (found := self._operand(a, b, x, y)) is not None:
                return found
        values = [
            (left.value(x), right.value(y)) for x, y in zip(a.results, b.results, strict=False)
        ]
        differ = [(x, y) for x, y in values if x is not None and y is not None and not _same(x, y)]
        same = a.shapes == b.shapes and not differ
        elements = next(filter(None, (self._elements(*p) for p in differ)), None)

        def parting(kind: str, message: str) -> Parting:
            return Parting(kind, f"{short(a)}{message}", a, b, (a.frame, b.frame), elements)

        if other := self._attributes(a, b):
            if not same:
                return parting("attribute", f": {other}")
            self._notes[f"{short(a)}: {other}, without effect: {line_of(a.frame)}"] = None
        if same:
            return None
        if a.shapes != b.shapes:
            return parting("shape", f" gives {sizes(a)} in a, {sizes(b)} in b")
        if "random" in a.uses and elements is not None:
            return self._drawn_before(i, j) or parting(
                "random", " draws other numbers, by another seed or after other draws"
            )
        if elements is not None and (self._are_same(a, b) or elements.unlike):
            of = " is finite on one side only" if elements.unlike else " differs for equal operands"
            return parting("result", of)
        errors = [error_of(_array(x), _array(y)).relative for x, y in differ]
        self._drift[i] = max(errors)
        self._rounding = self._rounding or parting(ROUNDING, ": its results differ")
        return None

    def _pair(self, i: int, j: int) -> tuple[Op, Op]:
        return self._sides[0].ops[i], self._sides[1].ops[j]

    def _are_same(self, a: Op, b: Op) -> bool:
        """Whether both have operands of the same types and bits, as far as they are known."""
        for x, y in zip(a.operands, b.operands, strict=False):
            v, w = self._sides[0].value(x.value), self._sides[1].value(y.value)
            if x.op in self._drift or (v is not None and w is not None and not _same(v, w)):
                return False
        return True

    def _drawn_before(self, i: int, j: int) -> Parting | None:
        """A draw of one side alone, before a pair that draws other numbers."""
        for s, at in enumerate((i, j)):
            ops, known = self._sides[s].ops, self._known[s]
            before = [n for n in range(at) if "random" in ops[n].uses and n not in known]
            if before:
                return self._alone(s, before[-1], self._pair(i, j)[1 - s], None)
        return None

    def _operand(self, a: Op, b: Op, x: Operand, y: Operand) -> Parting | None:
        """Operands that were not made by ops that are alike, or by none."""
        v, w = self._sides[0].value(x.value), self._sides[1].value(y.value)
        if v is not None and w is not None and v.dtype != w.dtype and not self._rounding:
            lines = x.cast or a.frame, y.cast or b.frame
            types = f"element types part here ({v.dtype} in a, {w.dtype} in b)"
            self._rounding = Parting(ROUNDING, f"{short(a)}: {types}", a, b, lines)
        if x.op >= 0 and self._known[0].get(x.op) == y.op and x.result == y.result:
            return None
        shapes = [t.values[o.value].shape for t, o in zip(self._sides, (x, y), strict=True)
                  if o.value != NO_VALUE]  # fmt: skip
        elements = None
        if len(shapes) < 2 or shapes[0] == shapes[1]:
            if v is None or w is None:
                if x.op < 0 or y.op < 0:
                    return None
            else:
                came = max(self._came(0, x), self._came(1, y))
                terms = max(self._terms(0, x), self._terms(1, y))
                if (elements := self._elements(v, w, SLACK, GROWTH * came, terms)) is None:
                    return None
        alone = [self._first_alone(s, o) for s, o in enumerate((x, y))]
        if min(alone) >= 0:
            both = self._pair(*alone)
            what = f"a runs {short(both[0])}, b {short(both[1])}"
            return Parting("only", what, *both, (both[0].frame, both[1].frame), elements)
        if max(alone) >= 0:
            s = int(alone[1] >= 0)
            return self._alone(s, max(alone), (a, b)[1 - s], elements)
        made = [side.ops[o.op] if o.op >= 0 else None
                for side, o in zip(self._sides, (x, y), strict=True)]  # fmt: skip
        what = [f"that of {line_of(m.frame)}" if m else "data" for m in made]
        kind, text = "operands", f"is given another result: {what[0]} in a, {what[1]} in b"
        if not any(made):
            kind, text = "input", "is given other data"
        return Parting(kind, f"{short(a)} {text}", a, b, (a.frame, b.frame), elements)

    def _back(self, s: int, x: Operand) -> Iterator[int]:
        """The ops that an operand was made by, back to those that both sides have, and data, -1."""
        left, seen = [x.op], set()
        while left:
            if (k := left.pop()) not in seen:
                yield k
                seen.add(k)
                if k >= 0 and k not in self._known[s]:
                    left += [o.op for o in self._sides[s].ops[k].operands]

    def _came(self, s: int, x: Operand) -> float:
        """The distance, by rounding, of what an operand was made of that both sides have."""
        back, known, worst = (
            set(self._back(s, x)),
            self._known[s],
            max(self._drift.values(), default=0),
        )
        if -1 in back:  # data, or what was compiled has made it
            return worst
        return max(
            (self._drift.get(known[k] if s else k, 0.0) for k in back & known.keys()), default=0
        )

    def _terms(self, s: int, x: Operand) -> float:
        """The scale of what an operand is a sum of, which may be far larger than the sum."""
        side = self._sides[s]
        made = side.ops[x.op] if x.op >= 0 else None
        while made and made.name.startswith(_VIEWS) and made.operands[0].op >= 0:
            made = side.ops[made.operands[0].op]
        given = [o.value for o in made.operands] if made and made.name.startswith(_SUMS) else []
        values = [v for k in given if (v := side.value(k)) is not None and v.is_floating_point()]
        return max((judging.rms(_array(v).astype(np.float64)) for v in values), default=0.0)

    def _first_alone(self, s: int, x: Operand) -> int:
        """The first of the ops that only this side runs on the way to an operand; -1 is none."""
        alone = [k for k in self._back(s, x) if k >= 0 and k not in self._known[s]]
        given = [k for k in alone if self._sides[s].ops[k].results != [NO_VALUE]]
        return min(given or alone, default=-1)

    def _alone(self, s: int, k: int, there: Op, elements: Elements | None) -> Parting:
        """An op that one side alone runs, beside the op of the other side that is there."""
        here = self._sides[s].ops[k]
        first, second = self._both(s, here.frame)
        lines = first or there.frame, second or there.frame
        return self._of_one("only", f"only {'ab'[s]} runs {short(here)}", s, here, lines, elements)

    def _of_one(self, kind, what, s: int, op: Op, lines: Frames, elements=None) -> Parting:
        return Parting(kind, what, None if s else op, op if s else None, lines, elements)

    # --- values and settings ---

    def _elements(self, x: Any, y: Any, slack=1.0, least=0.0, terms=0.0) -> Elements | None:
        """The difference of two values beyond rounding to the coarser type."""
        if x.shape != y.shape:
            return None
        a, b = _array(x), _array(y)
        if not (x.is_floating_point() and y.is_floating_point()):
            return judging.apart(a, b)
        coarse = coarser(dtype_of(a.dtype), dtype_of(b.dtype))
        rtol = max(slack * TOLERANCE[coarse.name], least)
        sizes = np.abs(b[np.isfinite(b) & (b != 0)].astype(np.float64))
        usual = float(np.quantile(sizes, 0.25)) if sizes.size else 0.0
        scale = judging.rms(sizes[sizes <= LARGE * usual])  # a mask's -1e9 says nothing of others
        with np.errstate(invalid="ignore"):
            return difference(a, b, rtol, rtol * max(scale, terms) + SMALL, coarse)

    def _attributes(self, a: Op, b: Op) -> str:
        """The difference of arguments that are no tensors; "" where they do not."""
        return "; ".join(
            f"{name} is {x} in a, {b.settings[name]} in b"
            for name, x in a.settings.items()
            if name in b.settings and not self._alike(x, b.settings[name])
        )

    def _alike(self, x: Any, y: Any) -> bool:
        if isinstance(x, list) and isinstance(y, list):
            return len(x) == len(y) and all(map(self._alike, x, y))
        if isinstance(x, float) and isinstance(y, float):
            drift = max(self._drift.values(), default=0.0)  # numbers that were read of tensors
            close = math.isclose(x, y, rel_tol=min(GROWTH * drift, READ))
            return close or (math.isnan(x) and math.isnan(y))
        return type(x) is type(y) and x == y

    def _settings(self) -> Iterator[Setting]:
        """Of what the scripts have made and called."""
        a, b = (side.built for side in self._sides)
        keys: list[Callable[[Any], Any]] = [
            lambda o: (o.kind, text_of(o.frame)), lambda o: o.kind, lambda o: o.kind[:1].isupper(),
        ]  # fmt: skip
        pairs = aligned(a, b, *keys)
        for i, j in pairs.items():
            x, y = a[i], b[j]
            parts = [
                f"{key} is {x.settings[key]} in a, {y.settings[key]} in b" for key in x.settings
                if key in y.settings and not self._alike(x.settings[key], y.settings[key])
            ]  # fmt: skip
            text = f"{x.kind}: {'; '.join(parts)}" if parts else ""
            if text := text if x.kind == y.kind else f"a has {x.kind}, b {y.kind}":
                places = " and ".join(dict.fromkeys((line_of(x.frame), line_of(y.frame))))
                yield Setting(f"{text} ({places})", (x.frame, y.frame), (x.used, y.used))
        for s, side in enumerate((a, b)):
            paired = pairs.values() if s else pairs.keys()
            for one in (side[k] for k in sorted(set(range(len(side))) - set(paired))):
                text = f"only {'ab'[s]} has {one.kind} ({line_of(one.frame)})"
                both = ((one.frame, None), (one.used, None))
                yield Setting(text, *((v[::-1] if s else v) for v in both))  # pyright: ignore


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and np.array_equal(_array(x), _array(y), equal_nan=True)


def _array(t: torch.Tensor) -> np.ndarray:
    return array_of(torch.view_as_real(t) if t.is_complex() else t)
