"""Why an element of a result is NaN or infinite: a rule of its op's that is broken, or what the
arithmetic says when the element is computed again, in f64, from its parts of the operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.faults import Site
from opstep.runtime.ir.types import dtype_of
from opstep.runtime.nan.arithmetic import Arithmetic
from opstep.runtime.plan.plan import Step

COMPUTED = 1 << 22  # elements of operands up to which one element is computed again

LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}
LARGEST["f64"] = 1.7976931348623157e308

# Of infinite operands, where f64 by itself does not come to the same: in the order of a kernel.
INFINITIES = "infinities among the operands: inf - inf, or 0 times infinity"
INFINITE = "an infinity among the operands"
# Of a NaN that nobody can compute again.
FINITE = "0 / 0, or an overflow on the way to the result"
UNKNOWN = "an overflow, or a division by 0"  # likewise of an infinity

Parts = Sequence[Any]
"""Of each operand what the element is computed from, floats in f64; None for none of it."""


class Reason(NamedTuple):
    """In words; what a rule blames, by operand (`Rule.masks`); the element in f64, None where
    nobody knows.
    """

    text: str
    masks: tuple
    exact: float | None


def reason(step: Step, site: Site, parts: Parts) -> Reason:
    """Why `site` of a result is what it is."""
    value = float(site.results[site.result][site.index])
    text, masks = broken(step, site, parts)
    arithmetic = Arithmetic()
    exact = computed(step, site, parts, np.float64, arithmetic)
    if not text and exact is not None:
        text = arithmetic.reason(exact)
    if step.op.traits.moves and exact is not None and len(parts) == 1 and parts[0].size == 1:
        exact = parts[0].item()  # its oracle, a cast's, rounds
    text = text or _by_size(step, site, parts, value, exact)
    return Reason(text, masks, None if exact is None else float(exact))


def broken(step: Step, site: Site, parts: Parts) -> tuple[str, tuple]:
    """The first rule that is broken, and what it blames by operand; "" where none is."""
    last = [j for j, a in enumerate(site.operands) if a is not None]
    there = parts[: last[-1] + 1] if last else []
    with np.errstate(all="ignore"):
        for rule in step.op.faults.rules:
            if masks := rule.masks(there, step.attrs):
                return rule.text, masks
    return "", ()


def computed(step: Step, site: Site, parts: Parts, dtype: Any, arithmetic: Arithmetic) -> Any:
    """The element by the op's oracle, of these parts in `dtype`, a scalar of NumPy's; `arithmetic`
    watches. None where it cannot be asked.
    """
    op = step.op
    if sum(p.size for p in parts if p is not None) > COMPUTED:
        return None
    watched = [_watched(p, dtype, arithmetic) for p in parts]
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


def _watched(part: Any, dtype: Any, arithmetic: Arithmetic) -> Any:
    if part is None or part.dtype.kind in "iub":
        return part
    return arithmetic.watch(part.astype(dtype))


def _by_size(step: Step, site: Site, parts: Parts, value: float, exact: Any) -> str:
    """What numbers alone say: too large, too small on the way, or nothing."""
    dtype = dtype_of(site.results[site.result].dtype)
    if not step.op.operands:
        return f"{step.op.name} writes it"
    floats = [p for p in parts if p is not None and p.dtype.kind not in "iub"]
    if any(np.isinf(p).any() for p in floats):  # not because of their size
        return INFINITIES if np.isnan(value) else INFINITE
    if exact is None and np.isinf(value):
        return UNKNOWN
    if exact is None or np.isnan(exact):
        return FINITE
    if abs(exact) >= LARGEST[dtype.name]:
        return f"overflow of {dtype.name}"
    arithmetic, wide = Arithmetic(), "f64" if dtype.name == "f64" else "f32"
    computed(step, site, parts, np.float64 if wide == "f64" else np.float32, arithmetic)
    way = "underflow" if arithmetic.underflow_first else "overflow"
    return f"{way} of {wide} on the way to the result"


def _within(index, shape, found) -> tuple[int, ...]:
    """The place in a part's result: axes that it holds whole keep theirs, the rest are one long."""
    return tuple(
        p if n == whole_n else 0 for p, n, whole_n in zip(index, found, shape, strict=True)
    )
