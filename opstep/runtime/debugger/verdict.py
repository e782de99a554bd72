"""Says of an op's NaNs and infinities whether they were born in it, of which elements, and why.

An element is the op's own where nothing that it is computed from has the same: a NaN of operands
without NaN, an infinity of finite ones. What it is computed from, and which rules that may break,
the op's declaration says (`ir.faults`); overflow is told by computing the element again in f64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.faults import Regions, Site, whole
from opstep.runtime.ir.types import DType
from opstep.runtime.plan.plan import Step

LOOKED_AT = 512  # elements of a result that are traced to their operands
EXPLAINED = 64  # of those that are its own, how many are explained
KEPT = 8  # of those, how many are told
BLAMED = 3  # elements of an operand that are told, largest first
COMPUTED = 1 << 22  # elements up to which the oracle is asked about a part

LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}
LARGEST["f64"] = 1.7976931348623157e308


class Blamed(NamedTuple):
    """An element of an operand that made another one bad."""

    operand: int
    place: tuple[int, ...]
    value: float


class Element(NamedTuple):
    """A bad element of a result. `exact`: what arithmetic in f64 gives, None where nobody knows."""

    place: tuple[int, ...]
    value: float
    rule: str
    exact: float | None
    blamed: tuple[Blamed, ...]


class Verdict(NamedTuple):
    """On one result. `kind`: nan or inf, of what was born here, else of what came in.

    `count`: elements that are bad; `own`: how many of them were born here, estimated from a sample
    where operands are bad, too. `rules`: what was broken, and by how many of the elements that were
    explained. `carried`: operands whose NaNs and infinities came through; `caused`: those whose
    infinities made NaNs here.
    """

    kind: str
    count: int
    size: int
    own: int
    rules: tuple[tuple[str, int], ...] = ()
    elements: tuple[Element, ...] = ()
    carried: tuple[int, ...] = ()
    caused: tuple[int, ...] = ()

    @property
    def is_origin(self) -> bool:
        return self.own > 0


def judge(
    step: Step, operands: Sequence[np.ndarray | None], results: Sequence[np.ndarray], k: int
) -> Verdict | None:
    """The verdict on result k; None where it is finite. Arrays are as stored."""
    array = results[k]
    if array.dtype.kind in "iub" or np.isfinite(array).all():
        return None
    return _Judge(step, operands, results, k).verdict()


class _Judge:
    def __init__(self, step: Step, operands, results, k: int):
        self.step = step
        self.operands = [
            None if a is None else a if a.dtype.kind in "iub" else np.asarray(a)
            for a in [*operands, *[None] * (len(step.operand_types) - len(operands))]
        ]
        self.results = results
        self.k = k
        self.nan_in = [_has(a, np.isnan) for a in self.operands]
        self.inf_in = [_has(a, np.isinf) for a in self.operands]

        self.carried: set[int] = set()
        self.caused: set[int] = set()
        self.explained: list[Element] = []

    def verdict(self) -> Verdict:
        array = self.results[self.k]
        nans, infs = self._own("nan", np.isnan(array)), self._own("inf", np.isinf(array))
        kind = "nan" if nans or not (infs or not np.isnan(array).any()) else "inf"
        return Verdict(
            kind,
            int((~np.isfinite(array)).sum()),
            array.size,
            nans + infs,
            tuple(Counter(e.rule for e in self.explained).most_common()),
            tuple(self.explained[:KEPT]),
            tuple(sorted(self.carried)),
            tuple(sorted(self.caused)),
        )

    def _own(self, kind: str, mask: np.ndarray) -> int:
        """How many of the elements of that kind were born here; explains some."""
        count = int(mask.sum())
        places, mine = _sample(mask, count), []
        for place in places:
            site = self._site(place)
            regions = self._regions(site)
            through = self._through(regions, kind)
            self.carried.update(through)
            if not through:
                mine.append((site, regions))
        budget = COMPUTED
        for site, regions in mine[:EXPLAINED]:
            parts = self._parts(regions)
            self.explained.append(self._explain(site, regions, parts))
            if kind == "nan":
                self.caused.update(j for j, p in enumerate(parts) if _has(p, np.isinf))
            budget -= sum(p.size for p in parts if p is not None)
            if budget < 0:
                break
        return max(round(count * len(mine) / len(places)), 1) if mine else 0

    # --- where an element comes from ---

    def _site(self, place: tuple[int, ...]) -> Site:
        return Site(place, self.k, self.operands, self.results, self.step.attrs)

    def _regions(self, site: Site) -> Regions:
        try:
            found = list(self.step.op.faults.relation(site))
        except (IndexError, KeyError, TypeError, ValueError):
            found = list(whole(site))  # a relation that is for other results, or other ranks
        return found + [None] * (len(self.operands) - len(found))

    def _parts(self, regions: Regions) -> list[np.ndarray | None]:
        """The parts of the operands, floats in f64."""
        parts = []
        for a, region in zip(self.operands, regions, strict=True):
            part = None if a is None or region is None else a[tuple(region)]
            if part is not None and part.dtype.kind not in "iub":
                part = part.astype(np.float64)
            parts.append(part)
        return parts

    def _through(self, regions: Regions, kind: str) -> list[int]:
        """Operands that have the same at that place: then it only came through."""
        found = self._with(regions, np.isnan if kind == "nan" else np.isinf)
        if kind == "inf" and not found:
            found = self._with(regions, np.isnan)
        return found

    def _with(self, regions: Regions, test) -> list[int]:
        """Operands of which the part has such an element."""
        anywhere = self.nan_in if test is np.isnan else self.inf_in
        found = []
        for j, (a, region) in enumerate(zip(self.operands, regions, strict=True)):
            if a is None or region is None or not anywhere[j]:
                continue
            part = a[tuple(region)]
            if part.size == a.size or _has(part, test):
                found.append(j)
        return found

    # --- why ---

    def _explain(self, site: Site, regions: Regions, parts) -> Element:
        value = float(self.results[self.k][site.place])
        rule, masks = self._broken(parts)
        exact = self._exact(site, regions, parts)
        if not rule:
            rule = self._arithmetic(value, exact)
        return Element(site.place, value, rule, exact, self._blamed(regions, parts, masks))

    def _broken(self, parts) -> tuple[str, tuple]:
        last = [j for j, a in enumerate(self.operands) if a is not None]
        there = parts[: last[-1] + 1] if last else []
        with np.errstate(all="ignore"):
            for rule in self.step.op.faults.rules:
                masks = rule.masks(there, self.step.attrs)
                if masks:
                    return rule.text, masks
        return "", ()

    def _exact(self, site: Site, regions: Regions, parts) -> float | None:
        """The element by the op's oracle, of these parts in f64."""
        op = self.step.op
        if sum(p.size for p in parts if p is not None) > COMPUTED:
            return None
        if op.faults.value:
            return op.faults.value(site, regions)
        while parts and parts[-1] is None:
            parts = parts[:-1]
        try:
            with np.errstate(all="ignore"):
                found = op.oracle(*parts, **self.step.attrs)
            found = np.asarray(found[self.k] if isinstance(found, (tuple, list)) else found)
            return float(found[_within(site.place, self.results[self.k].shape, found.shape)])
        except Exception:  # an oracle that wants more than a part; what it is asked is not its text
            return None

    def _arithmetic(self, value: float, exact: float | None) -> str:
        name, dtype = self.step.op.name, self._dtype()
        if exact is None:
            return f"overflow of {dtype}" if np.isinf(value) else "undefined for these operands"
        if np.isnan(exact):
            return "undefined for these operands"
        if abs(exact) >= LARGEST[dtype]:
            return f"overflow of {dtype}"
        if not self.step.op.operands:
            return f"{name} writes it"
        return f"overflow of {dtype} on the way to the result"

    def _dtype(self) -> str:
        from opstep.runtime.ir.types import dtype_of

        found: DType = dtype_of(self.results[self.k].dtype)
        return found.name

    def _blamed(self, regions: Regions, parts, masks: tuple) -> tuple[Blamed, ...]:
        """The elements that a rule blames; else the largest ones."""
        found = []
        for j, (region, part) in enumerate(zip(regions, parts, strict=True)):
            if region is None or part is None or not part.size:
                continue
            mask = masks[j] if j < len(masks) else None
            if isinstance(mask, np.ndarray) and mask.shape == part.shape:
                chosen = np.argwhere(mask)[:BLAMED]
            elif part.size == 1:
                chosen = [(0,) * part.ndim]
            else:
                size = np.abs(np.nan_to_num(part.astype(np.float64), nan=np.inf))
                order = np.argsort(-size, axis=None, kind="stable")[:BLAMED]
                chosen = (
                    np.argwhere(np.ones(part.shape, bool))[order]
                    if part.size < 4096
                    else [np.unravel_index(o, part.shape) for o in order]
                )
            shape = self.operands[j].shape  # pyright: ignore[reportOptionalMemberAccess]
            for at in chosen:
                place = _outside(region, at, shape)
                found.append(Blamed(j, place, float(part[tuple(at)])))
        return tuple(found)


def _has(a: Any, test) -> bool:
    return a is not None and a.dtype.kind not in "iub" and bool(test(a).any())


def _sample(mask: np.ndarray, count: int) -> list[tuple[int, ...]]:
    """Places of true elements: all, or the first ones and others all over the tensor."""
    if not count:
        return []
    flat = np.flatnonzero(mask)
    if count > LOOKED_AT:
        half = LOOKED_AT // 2
        flat = np.concatenate([flat[:half], flat[half :: -(-(count - half) // half)]])
    places = np.stack(np.unravel_index(flat, mask.shape), axis=-1) if mask.ndim else [()]
    return [tuple(map(int, p)) for p in places]


def _within(place, shape, found) -> tuple[int, ...]:
    """The place in a part's result: axes that it holds whole keep theirs, the rest are one long."""
    return tuple(
        p if n == whole_n else 0 for p, n, whole_n in zip(place, found, shape, strict=True)
    )


def _outside(region, at, shape) -> tuple[int, ...]:
    """The place in the operand of an element of its part."""
    place = []
    for part, offset, n in zip(region, at, shape, strict=True):
        start, _, step = part.indices(n)
        place.append(int(start + offset * step))
    return tuple(place)
