"""Functions for people: statistics, histograms, largest elements, differences, other steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError, NoTensor
from opstep.runtime.expressions.registry import (
    Deferred,
    Elements,
    Integer,
    Lazy,
    Number,
    String,
    function,
)
from opstep.runtime.expressions.text import bars, index_text, rounded_text, tensor_text
from opstep.runtime.expressions.values import (
    Evaluation,
    ValueTable,
    array_statistics,
    as_f64,
    dtype_named,
    elements,
    is_handle,
    type_of,
)
from opstep.runtime.statistics import BINS, LOWEST
from opstep.runtime.ulps import bits, ulps

INSPECTION = "looking at tensors"
TIME = "other steps, runs and files"
MOST = 10_000  # rows of a table
_STATISTICS = (
    "count", "min", "max", "mean", "std", "l2", "absmax", "nan", "posinf", "neginf", "zero",
    "subnormal", "unwritten",
)  # fmt: skip


def _statistics(env: Evaluation, x: Any) -> Any:
    return x.statistics() if is_handle(x) else array_statistics(env, elements(env, x))


@function(INSPECTION)
def stats(env: Evaluation, x: Lazy) -> Any:
    """Count, min, max, mean, std, l2 and absmax of the finite elements; the number of NaNs, inf,
    -inf, zeros, subnormal and unwritten elements. stats(x).std is a single one.
    """
    s = _statistics(env, x)
    rows = [(name, getattr(s, name)) for name in _STATISTICS]
    rows = [(name, value) for name, value in rows if value is not None]
    fields: dict[str, Any] = {name: getattr(s, name) for name in _STATISTICS}
    fields = {name: float("nan") if v is None else v for name, v in fields.items()}
    fields["inf"] = s.posinf + s.neginf
    fields["finite"] = s.finite
    return ValueTable("stats", ("figure", "value"), rows, tensor_text(type_of(x), s), fields)


@function(INSPECTION)
def hist(env: Evaluation, x: Lazy, bins: Integer = 0) -> Any:
    """Histogram by magnitude, in powers of two; or, with bins=20, in 20 equal bins from the
    smallest to the largest finite element.
    """
    if not bins:
        return _by_magnitude(_statistics(env, x))
    if not 1 <= bins <= MOST:
        raise ExpressionError(f"there are 1 to {MOST:,} bins")
    number = as_f64(env, elements(env, x)).reshape(-1)
    env.charge(number.size * 16)
    number = number[np.isfinite(number)]
    if not number.size:
        return ValueTable("hist", ("from", "to", "count"), [], "no finite elements", {"count": 0})
    low, high = float(number.min()), float(number.max())
    if not np.isfinite(high - low):
        raise ExpressionError("the elements are too far apart for equal ranges", hint="hist(x)")
    counts, edges = np.histogram(number, bins, (low, high))
    rows = list(zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True))
    text = f"{rounded_text(low)} {bars(counts)} {rounded_text(high)}"
    fields = {"counts": counts, "edges": edges, "count": int(counts.sum())}
    return ValueTable("hist", ("from", "to", "count"), rows, text, fields)


def _by_magnitude(s: Any) -> ValueTable:
    rows: list[tuple] = [("0", "", s.zero)] if s.zero else []
    filled = [k for k, n in enumerate(s.histogram) if n]
    span = range(filled[0], filled[-1] + 1) if filled else range(0)
    for k in span:
        low = "0" if k == 0 else f"2**{LOWEST + k}"
        high = "inf" if k == BINS - 1 else f"2**{LOWEST + k + 1}"
        rows.append((low, high, s.histogram[k]))
    odd = (("NaN", s.nan), ("inf", s.posinf), ("-inf", s.neginf))
    rows += [(name, "", number) for name, number in odd if number]
    text = "no elements other than 0"
    if filled:
        drawn = bars(np.array([s.histogram[k] for k in span]))
        text = f"|x| 2**{LOWEST + span[0]} {drawn} 2**{LOWEST + span[-1] + 1}"
    text += "".join(f"  {n:,} {name}" for name, n in (("zero", s.zero), *odd) if n)
    counts = np.array(s.histogram, np.int64)
    exponents = np.arange(LOWEST, LOWEST + BINS)
    fields = {"counts": counts, "exponents": exponents, "zero": s.zero, "nan": s.nan}
    return ValueTable("hist", ("magnitude from", "to", "count"), rows, text, fields)


@function(INSPECTION)
def topk(env: Evaluation, x: Elements, k: Integer = 10) -> Any:
    """The k largest elements and their indices; NaNs are ignored. topk(-x) finds the smallest,
    topk(abs(x)) the largest magnitudes.
    """
    array = np.asarray(x)
    if not 1 <= k <= MOST:
        raise ExpressionError(f"k is between 1 and {MOST:,}")
    env.charge(array.size * 24)
    flat = array.reshape(-1)
    remaining = np.arange(flat.size)
    if flat.dtype.kind in "fV":
        remaining = np.flatnonzero(~np.isnan(flat))
    found = flat[remaining]
    order = found.astype(np.float64) if found.dtype.kind in "fV" else found.astype(np.int64)
    if k < order.size:
        least = np.partition(order, order.size - k)[order.size - k]
        above = np.flatnonzero(order > least)
        chosen = np.concatenate([above, np.flatnonzero(order == least)[: k - above.size]])
        remaining, order = remaining[chosen], order[chosen]
    ranked = remaining[np.lexsort((-remaining, order))[::-1]]
    places = np.stack(np.unravel_index(ranked, array.shape), 1) if array.ndim else ranked[:, None]
    values = flat[ranked]
    rows = [(tuple(p), v) for p, v in zip(places.tolist(), values, strict=True)]
    texts = [f"{rounded_text(v)} at {index_text(p)}" for p, v in rows[:4]] or ["nothing but NaN"]
    text = ", ".join(texts) + (", …" if len(rows) > 4 else "")
    return ValueTable("topk", ("place", "value"), rows, text, {"values": values, "places": places})


# --- two tensors ---


@function(INSPECTION)
def same(env: Evaluation, a: Elements, b: Elements) -> Any:
    """Whether two tensors have the same type and the same bits, including NaNs."""
    return _same(np.asarray(a), np.asarray(b))


def _same(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(bits(a), bits(b)))


@function(INSPECTION)
def close(
    env: Evaluation, a: Elements, b: Elements, rtol: Number = 1e-5, atol: Number = 1e-8
) -> Any:
    """Whether abs(a - b) <= atol + rtol * abs(b) for all elements; NaN is close to NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape and a.size > 1 and b.size > 1:
        raise ExpressionError(f"{type_of(a)} and {type_of(b)} are of different shapes")
    env.charge(max(a.size, b.size) * 40)
    return bool(np.allclose(as_f64(env, a), as_f64(env, b), rtol, atol, equal_nan=True))


@function(INSPECTION)
def diff(env: Evaluation, a: Elements, b: Elements) -> Any:
    """How two tensors differ: the number of differing elements, the first one, and the largest
    difference: absolute, relative to b, and in units in the last place. NaN equals NaN.

    Fields: differing, count, max_abs, max_rel, max_ulp, first.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        if a.size != 1 and b.size != 1:
            raise ExpressionError(f"{type_of(a)} and {type_of(b)} are of different shapes")
        a, b = np.broadcast_arrays(a, b)
    env.charge(a.size * 64)
    exact = _same_elements(a, b)
    places = np.flatnonzero(~exact)
    count = int(a.size)
    if not places.size:
        fields = {"differing": 0, "count": count, "max_abs": 0.0, "max_rel": 0.0, "max_ulp": 0}
        text = f"equal in all {count:,} elements"
        return ValueTable(
            "diff", ("figure", "value", "place"), [("differing", 0, "")], text, fields
        )
    return _differences(a, b, places, count)


def _same_elements(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype != b.dtype:
        a, b = a.astype(np.float64), b.astype(np.float64)
    found = a == b
    return found | (np.isnan(a) & np.isnan(b)) if a.dtype.kind in "fV" else found


def _differences(a: np.ndarray, b: np.ndarray, places: np.ndarray, count: int) -> ValueTable:
    x, y = (v.reshape(-1)[places] for v in (a, b))
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    gap = np.abs(wide_x - wide_y)  # inf where only one is, NaN where only one is
    relative = gap / np.abs(wide_y)
    steps = _ulps(x, y)

    def at(k: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(places[k], a.shape))

    fields: dict[str, Any] = {"differing": int(places.size), "count": count}
    rows: list[tuple] = [("differing", int(places.size), ""), ("count", count, "")]
    rows.append(("first", f"{rounded_text(x[0])} and {rounded_text(y[0])}", index_text(at(0))))
    text = f"{places.size:,} of {count:,} differ, the first at {index_text(at(0))}"
    for name, words, figures in (
        ("max_abs", "max abs", gap), ("max_rel", "rel", relative), ("max_ulp", "ulp", steps),
    ):  # fmt: skip
        if figures is None:
            continue
        present = figures == figures
        if not present.any():
            fields[name] = float("nan")
            continue
        k = int(np.argmax(np.where(present, figures, figures.dtype.type(0))))
        value = figures[k].item()
        fields[name] = value
        rows.append((name, value, index_text(at(k))))
        text += f"; {words} {rounded_text(value)} at {index_text(at(k))}"
    odd = int((np.isnan(wide_x) != np.isnan(wide_y)).sum())
    if odd:
        text += f"; {odd:,} NaN on one side only"
    fields |= {"nan": odd, "first": at(0)}
    return ValueTable("diff", ("figure", "value", "place"), rows, text, fields)


def _ulps(x: np.ndarray, y: np.ndarray) -> Any:
    """How many floats of the type lie between; None for what has no such steps."""
    if x.dtype != y.dtype or x.dtype.kind not in "fV":
        return None
    odd = np.isnan(x.astype(np.float64)) | np.isnan(y.astype(np.float64))
    gap = np.where(odd, 0, ulps(x, y))
    return np.minimum(gap, np.uint64(2**63 - 1)).astype(np.int64)


# --- other steps, runs and files ---


@function(TIME)
def prev(env: Evaluation, x: Deferred, steps: Integer = 1) -> Any:
    """x at the end of the previous step or, in a loop, the previous iteration. prev(x, 3), or
    x@-3, is x three steps ago.
    """
    found, there = _before(env, x, steps)
    if not there:
        raise ExpressionError("there is no such step", hint="it is before the first, or forgotten")
    return found


def _before(env: Evaluation, x: Any, steps: int) -> tuple[Any, bool]:
    there = env.scope.relative(-steps) if steps else env.scope
    return (None, False) if there is None else (env.within(there, x), True)


@function(TIME)
def changed(env: Evaluation, x: Deferred) -> Any:
    """Whether any bit of x has changed since the previous step or iteration; false in the first,
    and if x had no value then.
    """
    now = env.within(env.scope, x)
    try:
        before, there = _before(env, x, 1)
    except NoTensor:
        return False
    if not there:
        return False
    node = getattr(now, "node", None)
    if node is not None and node is getattr(before, "node", None):
        return False
    if type_of(now) != type_of(before):
        return True
    size: Any = type_of(now).size
    env.charge_elements(size, 2)
    return not _same(np.asarray(elements(env, now)), np.asarray(elements(env, before)))


@function(TIME)
def was(env: Evaluation, x: Deferred, changes: Integer = 1) -> Any:
    """x before its last change, by an op that updates it or by hand: diff(w, was(w)). was(x, 3)
    is x three changes ago.
    """
    if changes < 0:
        raise ExpressionError("changes are counted back, from 0", hint="write was(x, 3)")
    there = env.scope.changed(changes) if changes else env.scope
    try:
        return env.within(there, x)
    except NoTensor as error:
        hint = "it did not change so often, or that is forgotten"
        raise ExpressionError("there is no such version", error.column, hint) from None


@function(TIME)
def load(env: Evaluation, path: String) -> Any:
    """An array from a file below the program's folder: load("x.npy"), load("x.npz:name"),
    load("x.safetensors:name").
    """
    array = env.scope.load(path)
    env.charge(array.nbytes)
    dtype_named(array)
    return array
