"""Says of an op's NaNs and infinities whether they were born in it, of which elements, and why.

The kernel says which elements are the op's own (`rerun`): of all of them. What one of those is
computed from, and which rules that may break, the op's declaration says (`ir.faults`); overflow
shows when the element is computed again in f64. Some are explained so, the first and others all
over the tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.debugger.rerun import (
    Rerun,
    bad,
    born,
    carriers,
    is_float,
    odd_elements,
    on_cpu,
)
from opstep.runtime.ir.faults import UNKNOWN, Regions, Site, all_elements
from opstep.runtime.ir.types import dtype_of
from opstep.runtime.nan.arithmetic import Arithmetic
from opstep.runtime.nan.silent import SilentLoss
from opstep.runtime.plan.plan import Step

EXPLAINED = 64  # of those that are its own, how many are explained
MOST_ELEMENTS = 8  # of those, how many are shown
BLAMED = 3  # elements of an operand that are shown, largest first
COMPUTED = 1 << 22  # elements of operands up to which one element is computed again

LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}
LARGEST["f64"] = 1.7976931348623157e308

# Of infinite operands, where f64 by itself does not come to the same: in the order of a kernel.
INFINITIES = "infinities among the operands: inf - inf, or 0 times infinity"
INFINITE = "an infinity among the operands"
# Of a NaN that nobody can compute again.
FINITE = "0 / 0, or an overflow on the way to the result"
INFINITE_UNKNOWN = "an overflow, or a division by 0"  # likewise of an infinity

Parts = Sequence[Any]
"""Of each operand what the element is computed from, floats in f64; None for none of it."""


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

    `count`: elements that are bad, `nan` of them NaN; `own`: those that were born here; `arrived`:
    how many of these come out, None where nobody asked. `rules`: what was broken, and by how many
    of the `explained` elements, which are all of its own or a sample; those of the `kind` come
    first. `carried`: operands whose NaNs and infinities came through; `caused`: those whose
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
    explained: int = 0
    arrived: int | None = None
    nan: int = 0

    @property
    def is_origin(self) -> bool:
        return self.own > 0


def judge(
    step: Step, operands: Sequence[np.ndarray | None], results: Sequence[np.ndarray], k: int,
    again: Rerun | None = None, own: np.ndarray | None = None, arriving: np.ndarray | None = None,
) -> Verdict | None:  # fmt: skip
    """The verdict on result k; None where it is finite. Arrays are as stored.

    `again` runs the op with other operands, on the CPU where none is given. `own`: a mask of the
    elements that were born here, where that is known already; `arriving`: of those that come out,
    which are explained then.
    """
    array = results[k]
    if array.dtype.kind in "iub" or np.isfinite(array).all():
        return None
    run = again or on_cpu(step, operands)
    if own is None:
        own = np.asarray(born(run, operands, array, k))
    carried = carriers(run, operands, array, own, k)
    return _Judge(step, operands, results, k).verdict(own, carried, arriving)


def loss_verdict(
    step: Step, operands: Sequence[np.ndarray | None], results: Sequence[np.ndarray], k: int,
    found: SilentLoss,
) -> Verdict:  # fmt: skip
    """The verdict on what result k lost: elements of the mask, or, where it has none, the whole."""
    size, count = results[k].size, int(found.mask.sum())
    if found.mask.shape != results[k].shape:
        return Verdict(found.kind, size, size, size, ((found.text, size),))
    one = _Judge(step, operands, results, k)
    elements = tuple(
        one.element_at(place, found.text) for place in _sample(found.mask)[:MOST_ELEMENTS]
    )
    return Verdict(
        found.kind, count, size, count, ((found.text, count),), elements, explained=count
    )


def regions_of(step: Step, site: Site) -> Regions:
    """The part of each operand that an element is computed from, as the op declares it."""
    try:
        found = list(step.op.faults.relation(site))
    except (IndexError, KeyError, TypeError, ValueError):
        found = list(all_elements(site))  # a relation that is for other results, or other ranks
    return found + [None] * (len(site.operands) - len(found))


def parts_of(site: Site, regions: Regions) -> list[Any]:
    """These parts of the operands, floats in f64."""
    parts = []
    for a, region in zip(site.operands, regions, strict=True):
        part: Any = None if a is None or region is None else a[tuple(region)]
        parts.append(part.astype(np.float64) if is_float(part) else part)
    return parts


class _Judge:
    def __init__(self, step: Step, operands, results, k: int):
        self.step = step
        self.operands = [*operands, *[None] * (len(step.operand_types) - len(operands))]
        self.results = results
        self.k = k
        self.caused: set[int] = set()

    def verdict(self, own: np.ndarray, carried: tuple[int, ...], arriving) -> Verdict:
        array = self.results[self.k]
        mask = own if arriving is None or not (own & arriving).any() else own & arriving
        nan = np.isnan(array)
        kind = "nan" if (mask & nan).any() or not (own.any() or not nan.any()) else "inf"
        same = nan if kind == "nan" else ~nan
        explained = self._explained(mask & same, kind)
        others = self._explained(mask & ~same, "inf" if kind == "nan" else "nan")
        rules: dict[str, int] = {}
        for found in (explained, others):  # those of the kind first
            for text, n in Counter(e.rule for e in found).most_common():
                rules[text] = rules.get(text, 0) + n
        return Verdict(
            kind,
            int(bad(array).sum()),
            array.size,
            int(own.sum()),
            tuple(rules.items()),
            tuple([*explained, *others][:MOST_ELEMENTS]),
            carried,
            tuple(sorted(self.caused)),
            len(explained) + len(others),
            None if arriving is None else int((own & arriving).sum()),
            int(nan.sum()),
        )

    def _explained(self, mask: np.ndarray, kind: str) -> list[Element]:
        """Some elements, the first ones and others all over the tensor."""
        found, budget = [], COMPUTED
        for place in _sample(mask):
            site, regions, parts = self._located(place)
            text, masks, exact = _reason(self.step, site, parts)
            blamed = self._blamed(regions, parts, masks)
            found.append(Element(place, float(self.results[self.k][place]), text, exact, blamed))
            if kind == "nan":
                self.caused.update(odd_elements(parts, np.isinf))
            budget -= sum(p.size for p in parts if p is not None)
            if budget < 0:
                break
        return found

    def element_at(self, place: tuple[int, ...], text: str) -> Element:
        """An element that is no NaN, and why it is reported."""
        site, regions, parts = self._located(place)
        blamed = self._blamed(regions, parts, broken(self.step, site, parts)[1], place)
        result, exact = self.results[self.k], None
        if result.dtype != np.float64:  # which is no wider
            exact = _computed(self.step, site, parts, np.float64, Arithmetic())
        exact = None if exact is None else float(exact)
        return Element(place, float(result[place]), text, exact, blamed)

    def _located(self, place: tuple[int, ...]) -> tuple[Site, Regions, list[Any]]:
        """An element of the result, and what of the operands it is computed from."""
        site = Site(place, self.k, self.operands, self.results, self.step.attrs)
        regions = regions_of(self.step, site)
        return site, regions, parts_of(site, regions)

    def _blamed(
        self, regions: Regions, parts, masks: tuple, own: tuple[int, ...] | None = None
    ) -> tuple[Blamed, ...]:
        """The elements that a rule blames; else the largest ones, but first that of the place `own`
        where an operand has the result's shape: the one that got lost.
        """
        found = []
        if self.step.op.faults is UNKNOWN:
            return ()  # which elements it is computed from is not known
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
                if own is not None and self.operands[j].shape == self.results[self.k].shape:
                    size[_inside(region, own, self.operands[j].shape)] = np.inf
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


def _sample(mask: np.ndarray) -> list[tuple[int, ...]]:
    """Places of true elements: all, or the first ones and others all over the tensor."""
    flat = np.flatnonzero(mask)
    if flat.size > EXPLAINED:
        half = EXPLAINED // 2
        flat = np.concatenate([flat[:half], flat[half :: -(-(flat.size - half) // half)]])
    places = (
        np.stack(np.unravel_index(flat, mask.shape), axis=-1) if mask.ndim else [()] * flat.size
    )
    return [tuple(map(int, p)) for p in places]


def _inside(region, place, shape) -> tuple[Any, ...]:
    """The place in its part of an element of the operand; an empty slice where it is elsewhere."""
    found = [range(*part.indices(n)) for part, n in zip(region, shape, strict=True)]
    within = all(p in one for p, one in zip(place, found, strict=True))
    return (
        tuple(one.index(p) for p, one in zip(place, found, strict=True)) if within else (slice(0),)
    )


def _outside(region, at, shape) -> tuple[int, ...]:
    """The place in the operand of an element of its part."""
    place = []
    for part, offset, n in zip(region, at, shape, strict=True):
        start, _, step = part.indices(n)
        place.append(int(start + offset * step))
    return tuple(place)


def given_verdict(array: np.ndarray, own: np.ndarray, arriving: np.ndarray | None) -> Verdict:
    """On a value from outside: its bad elements."""
    mask = own if arriving is None else own & arriving
    places = [tuple(map(int, p)) for p in np.argwhere(mask)[:MOST_ELEMENTS]]
    elements = tuple(Element(p, float(array[p]), "given", None, ()) for p in places)
    count = int(own.sum())
    kind = "nan" if np.isnan(array[own]).any() else "inf"
    arrived = None if arriving is None else int(mask.sum())
    return Verdict(kind, count, array.size, count, (("given", count),), elements, arrived=arrived)


def _reason(step: Step, site: Site, parts: Parts) -> tuple[str, tuple, float | None]:
    """Why `site` of a result is what it is, in words; what a rule blames, by operand
    (`Rule.masks`); the element in f64, None where nobody knows.
    """
    value = float(site.results[site.result][site.index])
    text, masks = broken(step, site, parts)
    arithmetic = Arithmetic()
    exact = _computed(step, site, parts, np.float64, arithmetic)
    if not text and exact is not None:
        text = arithmetic.reason(exact)
    if step.op.traits.moves and exact is not None and len(parts) == 1 and parts[0].size == 1:
        exact = parts[0].item()  # its oracle, a cast's, rounds
    text = text or _by_size(step, site, parts, value, exact)
    return text, masks, None if exact is None else float(exact)


def broken(step: Step, site: Site, parts: Parts) -> tuple[str, tuple]:
    """The first rule that is broken, and what it blames by operand; "" where none is."""
    last = [j for j, a in enumerate(site.operands) if a is not None]
    there = parts[: last[-1] + 1] if last else []
    with np.errstate(all="ignore"):
        for rule in step.op.faults.rules:
            if masks := rule.masks(there, step.attrs):
                return rule.text, masks
    return "", ()


def _computed(step: Step, site: Site, parts: Parts, dtype: Any, arithmetic: Arithmetic) -> Any:
    """The element by the op's oracle, of these parts in `dtype`, a scalar of NumPy's; `arithmetic`
    watches. None where it cannot be asked.
    """
    op = step.op
    if sum(p.size for p in parts if p is not None) > COMPUTED:
        return None
    watched = [arithmetic.watch(p.astype(dtype) if is_float(p) else p) for p in parts]
    with np.errstate(all="ignore"):
        if op.faults.value:
            operands = [arithmetic.watch(a) for a in site.operands]
            return np.asarray(op.faults.value(site._replace(operands=operands), watched))[()]
        while watched and watched[-1] is None:
            watched.pop()
        try:
            found = op.oracle(*watched, **step.attrs)
            found = np.asarray(found[site.result] if isinstance(found, (tuple, list)) else found)
            return found[_within(site.index, site.results[site.result].shape, found.shape)]
        except Exception:  # an oracle that wants more than a part; what it is asked is not its text
            return None


def _by_size(step: Step, site: Site, parts: Parts, value: float, exact: Any) -> str:
    """The cause as numbers alone show it: too large, too small on the way, or nothing."""
    dtype = dtype_of(site.results[site.result].dtype)
    if not step.op.operands:
        return f"{step.op.name} writes it"
    if odd_elements(parts, np.isinf):  # not because of their size
        return INFINITIES if np.isnan(value) else INFINITE
    if exact is None and np.isinf(value):
        return INFINITE_UNKNOWN
    if exact is None or np.isnan(exact):
        return FINITE
    if abs(exact) >= LARGEST[dtype.name]:
        return f"overflow of {dtype.name}"
    arithmetic, wide = Arithmetic(), "f64" if dtype.name == "f64" else "f32"
    _computed(step, site, parts, np.float64 if wide == "f64" else np.float32, arithmetic)
    way = "underflow" if arithmetic.underflow_first else "overflow"
    return f"{way} of {wide} on the way to the result"


def _within(index, shape, found) -> tuple[int, ...]:
    """The place in a part's result: axes that it holds whole keep theirs, the rest are one long."""
    return tuple(p if n == whole else 0 for p, n, whole in zip(index, found, shape, strict=True))
