"""From which bad elements of its operands the bad elements of an op's result come.

What only moves elements is asked where they were. Of any other op some elements of an operand are
marked one by one, and how a mark spreads shows the axes that run along with the result's: so of all
elements at once. Where they do not run along (windows, scatters), and where they are few, they are
halved until it is known which of them count; what would take too long is taken to count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from opstep.runtime.debugger.rerun import (
    LOWEST,
    SUBSTITUTES,
    Rerun,
    Test,
    bad,
    distinct_values,
    is_float,
    odd_elements,
    replaced,
)
from opstep.runtime.plan.plan import Step

ITSELF, CAUSED = (
    1,
    2,
)  # why an element counts: what it is arrives, or it made another kind that does
FEW = 4  # elements that are tried one by one before anything is learnt of the op
MARKED = 8  # elements that are marked to learn how an op spreads them
RUNS = 96  # of an op, to try the elements of one operand; fewer of a large one
WORK = 1 << 31  # arithmetic operations of them together

Masks = dict[int, np.ndarray]  # by operand, of ITSELF and CAUSED
Effect = Callable[[np.ndarray], np.ndarray]  # of some elements of an operand on those of the result
Axes = tuple[int, ...]  # by axis of the result the operand's that runs along, -1 for none


class Sources:
    """Of the ops of one step; what is learnt of an op holds for all turns of a loop."""

    def __init__(self) -> None:
        self._axes: dict[tuple, Axes | None] = {}

    def of(
        self, step: Step, again: Rerun, operands: Sequence[np.ndarray | None],
        result: np.ndarray, k: int, own: np.ndarray, wanted: np.ndarray,
    ) -> Masks:  # fmt: skip
        """Of each operand the bad elements that those elements of result k which are `wanted` (bits
        of ITSELF and CAUSED) come from. `own` were born here: they come from infinities, if from
        anything.
        """
        if step.op.traits.reinterprets:
            assert operands[0] is not None
            return {0: wanted.reshape(operands[0].shape)}
        if step.op.traits.moves and not step.op.is_shared(step.attrs):
            found = moved(step, operands, k, wanted)
            if found is not None:
                return found
        nan, inf = np.isnan(result), np.isinf(result)
        one = _Result(self, step, again, operands, k)
        one.carried(np.where(nan & ~own, wanted, 0), np.isnan)
        one.carried(np.where(inf & ~own, wanted, 0), np.isinf)
        one.caused(np.where(nan & own, wanted, 0))
        return one.found

    def axes(self, step: Step, again: Rerun, operands, k: int, j: int, shape) -> Axes | None:
        shapes = tuple(None if a is None else a.shape for a in operands)
        key = (id(step), k, j, shapes)
        if key not in self._axes:
            self._axes[key] = _axes(again, operands, k, j, shape)
        return self._axes[key]


class _Result:
    """One result of one execution."""

    def __init__(self, sources: Sources, step: Step, again: Rerun, operands, k: int):
        self.sources = sources
        self.step = step
        self.again = again
        self.operands = operands
        self.k = k
        self.found: Masks = {}

    def carried(self, wanted: np.ndarray, test: Test) -> None:
        """Elements that came as what they are: of what makes them so alone; else of what they need,
        as a minimum needs both infinities; else of what they are computed from; else of as few as
        keep them bad.
        """
        odd = odd_elements(self.operands, test) or odd_elements(self.operands, bad)
        parts = [(j, m) for j, mask in odd.items() for m in _signs(self.operands[j], mask)]
        if len(parts) == 1 and self._by_axes(*parts[0], wanted, FEW):
            return
        left = wanted
        for value in SUBSTITUTES:
            requested = wanted if len(parts) > 1 else left
            if not requested.any():
                break
            others = {i: replaced(self.operands[i], m, value) for i, m in odd.items()}
            # what stays bad without all of them says nothing of one
            requested = np.where(test(self.again(others)[self.k]), 0, requested)
            for j, mask in parts:
                alone = self._alone(j, odd[j], value, others, test)
                left = np.where(self._from(j, mask, requested, alone, FEW), 0, left)
        for learn, few in ((partial(self._needed, test), FEW), (self._marked, 0)):
            requested = left
            for j, mask in odd.items() if requested.any() else ():
                left = np.where(self._from(j, mask, requested, learn(j), few), 0, left)
        if left.any():
            for j, mask in self._fewest(odd, left != 0, test).items():
                self._note(j, np.where(mask, np.bitwise_or.reduce(left, axis=None), 0))

    def caused(self, wanted: np.ndarray) -> None:
        """NaNs of infinities: of all that come together in them."""
        wanted = np.where(wanted, CAUSED, 0).astype(np.uint8)
        if wanted.any():
            for j, mask in odd_elements(self.operands, np.isinf).items():
                self._from(j, mask, wanted, self._marked(j), 0)

    # --- what some elements of an operand do to the result: masks of it ---

    def _alone(self, j: int, odd, value: float, others: Masks, test: Test) -> Effect:
        """Elements that are bad where only they are."""

        def effect(these: np.ndarray) -> np.ndarray:
            changed = replaced(self.operands[j], odd & ~these, value)
            return test(self.again({**others, j: changed})[self.k])

        return effect

    def _needed(self, test: Test, j: int) -> Effect:
        """Elements that are not bad without them."""

        def effect(these: np.ndarray) -> np.ndarray:
            return ~test(self.again({j: replaced(self.operands[j], these, SUBSTITUTES[0])})[self.k])

        return effect

    def _marked(self, j: int) -> Effect:
        """Elements that become NaN where NaNs stand there among made-up values."""

        def effect(these: np.ndarray) -> np.ndarray:
            marks = {j: replaced(plain[j], these, np.nan)}
            return np.isnan(self.again({**plain, **marks})[self.k])

        plain, _ = harmless(self.again, self.operands, self.k)
        return effect

    # --- which elements of an operand do ---

    def _from(self, j: int, odd, wanted, effect: Effect, few: int) -> np.ndarray:
        """Notes which of the odd elements have that effect on what is wanted. Gives a mask of what
        is explained so.
        """
        wanted = np.where(effect(odd), wanted, 0) if wanted.any() else wanted
        explained = np.zeros(wanted.shape, bool)
        if not wanted.any():
            return explained
        if self._by_axes(j, odd, wanted, few):
            return wanted != 0
        itself, caused = (wanted & ITSELF) != 0, (wanted & CAUSED) != 0
        both = bool((itself == caused).all())
        for bits, requested in ((ITSELF | CAUSED * both, itself), (CAUSED, caused & (not both))):
            if requested.any():
                counted, affected = self._by_halves(odd, requested, effect)
                self._note(j, np.where(counted, bits, 0))
                explained |= affected
        return explained

    def _by_axes(self, j: int, odd, wanted, few: int) -> bool:
        """Notes those of more than a few that run along with what is wanted, if axes do."""
        if odd.sum() <= few or not wanted.any():
            return False
        axes = self.sources.axes(self.step, self.again, self.operands, self.k, j, wanted.shape)
        if axes is not None:
            self._note(j, np.where(odd, _along(wanted, axes, odd.shape), 0))
        return axes is not None

    def _note(self, j: int, bits: np.ndarray) -> None:
        bits = bits.astype(np.uint8)
        self.found[j] = self.found[j] | bits if j in self.found else bits

    def _by_halves(self, odd, requested, effect: Effect) -> tuple[np.ndarray, np.ndarray]:
        """Those of the odd elements that have the effect on one that is asked for, each by itself;
        and on which they have it.
        """
        counted, affected = np.zeros(odd.shape, bool), np.zeros(requested.shape, bool)
        flat = np.flatnonzero(odd)
        if len(flat) == 1:  # something has made it, and there is no other
            return odd, requested
        most = self._affordable(odd.size + requested.size)
        groups, runs = [flat[: len(flat) // 2], flat[len(flat) // 2 :]], 0
        while groups:
            group = groups.pop()
            if runs >= most:
                counted.reshape(-1)[group] = True
                affected |= requested
                continue
            runs += 1
            these = np.zeros(odd.shape, bool)
            these.reshape(-1)[group] = True
            hit = effect(these) & requested
            if not hit.any():
                continue
            if len(group) == 1:
                counted.reshape(-1)[group] = True
                affected |= hit
            else:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        return counted, affected

    def _fewest(self, odd: Masks, requested, test: Test) -> Masks:
        """As few of the odd elements as keep bad what is asked for, as a median needs some; all of
        them where it is bad without any.
        """
        found, changes = {}, {}
        for j, mask in odd.items():
            remaining, groups = np.array(mask), [np.flatnonzero(mask)]
            for _ in range(self._affordable(mask.size + requested.size)):
                if not groups:
                    break
                group, less = groups.pop(), np.array(remaining)
                less.reshape(-1)[group] = False
                changed = replaced(self.operands[j], mask & ~less, SUBSTITUTES[0])
                if test(self.again({**changes, j: changed})[self.k])[requested].all():
                    remaining, changes[j] = less, changed
                elif len(group) > 1:
                    groups += [group[: len(group) // 2], group[len(group) // 2 :]]
            found[j] = remaining
        return found if any(m.any() for m in found.values()) else odd

    def _affordable(self, elements: int) -> int:
        """The number of times that the op may be run."""
        flops: Any = self.step.op.flops(*self.step.operand_types, **self.step.attrs)
        return max(4, min(RUNS, WORK // max(int(flops), 8 * elements)))


def _along(wanted: np.ndarray, axes: Axes, shape: Sequence[int]) -> np.ndarray:
    """The wanted elements of the result, over the operand's axes."""
    reduced = tuple(a for a, d in enumerate(axes) if d < 0)
    left = np.bitwise_or.reduce(wanted, axis=reduced) if reduced else wanted
    common = [d for d in axes if d >= 0]
    left = np.transpose(left, np.argsort(common)) if common else left
    sizes = [n if d in common else 1 for d, n in enumerate(shape)]
    return np.broadcast_to(left.reshape(sizes), shape)


def _axes(again: Rerun, operands, k: int, j: int, shape: Sequence[int]) -> Axes | None:
    """The operand's axis along each of the result's; None where they do not run along."""
    size = operands[j].size
    plain, finite = harmless(again, operands, k)
    if not finite:
        return None
    possible: list[set[int]] = [set(range(-1, operands[j].ndim)) for _ in shape]
    for flat in sorted({(n * 0x9E3779B1 + n * size // MARKED) % size for n in range(MARKED)}):
        marked = np.array(plain[j])
        marked.reshape(-1)[flat] = np.nan
        index = np.unravel_index(flat, marked.shape)
        spread = np.asarray(np.isnan(again(plain | {j: marked})[k]))
        count = 1
        for a, n in enumerate(shape):
            over = np.asarray(spread.any(axis=tuple(b for b in range(len(shape)) if b != a)))
            count *= int(over.sum())
            fits = {d for d, p in enumerate(index) if over.sum() == 1 and over[p : p + 1].all()}
            fits = {d for d in fits if index[d] < n and marked.shape[d] == n}
            possible[a] &= fits | ({-1} if over.all() else set())
        if int(spread.sum()) != count or not count:
            return None
    return _chosen(possible, shape)


def harmless(again: Rerun, operands, k: int) -> tuple[Masks, bool]:
    """Made-up operands of which the op makes no NaN, if some are known; whether it is so."""
    plain: Masks = {}
    for low in LOWEST:
        plain = {i: distinct_values(a, low) for i, a in enumerate(operands) if is_float(a)}
        if not bad(again(plain)[k]).any():
            return plain, True
    return plain, False


def _signs(operand: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """A mask of +inf, and one of the rest: one of them alone decides what a maximum is."""
    above = mask & (operand == np.inf)
    return [m for m in (above, mask & ~above) if m.any()]


def _chosen(possible: list[set[int]], shape: Sequence[int]) -> Axes | None:
    """One axis for each of the result's."""
    chosen: list[int] = []
    for n, axes in zip(shape, possible, strict=True):
        left = {d for d in axes if d < 0 or d not in chosen}
        if not left:
            return None
        chosen.append(-1 if n == 1 and -1 in left else max(left))
    return tuple(chosen)


def moved(step: Step, operands, k: int, wanted: np.ndarray, integers: bool = False) -> Masks | None:
    """The same for an op that only moves elements: it moves their numbers. Of floats, or of
    integers, too, that are no indices.
    """
    kinds = [s.kind for s in step.op.operands]
    kinds += kinds[-1:] * (len(operands) - len(kinds))
    first, numbers, starts = 1.0, [], {}
    for j, a in enumerate(operands):
        if not is_float(a) and not (integers and a is not None and kinds[j] in "TN"):
            numbers.append(a)
            continue
        starts[j] = int(first)
        # a fraction, as no number that the op itself puts there has it
        numbers.append(np.arange(a.size, dtype=np.float64).reshape(a.shape) + (first + 0.3125))
        first += a.size
    while numbers and numbers[-1] is None:
        numbers.pop()
    try:
        numbered = step.op.oracle(*numbers, **step.attrs)
    except Exception:  # an oracle that wants other operands; what it is asked is not its text
        return None
    numbered = np.asarray(numbered[k] if isinstance(numbered, (tuple, list)) else numbered)
    if numbered.shape != wanted.shape or numbered.dtype != np.float64:
        return None
    found: Mapping[int, Any] = {j: np.zeros(operands[j].size, np.uint8) for j in starts}
    mask = wanted != 0
    numbered, bits = numbered[mask], wanted[mask]
    with np.errstate(invalid="ignore"):
        at = numbered.astype(np.int64)
    at = np.where(numbered == at + 0.3125, at, 0)  # else the op put it there
    for j, start in starts.items():
        mine = (at >= start) & (at < start + operands[j].size)
        for bit in (ITSELF, CAUSED):
            found[j][at[mine & ((bits & bit) != 0)] - start] |= bit
    return {j: m.reshape(operands[j].shape) for j, m in found.items()}
