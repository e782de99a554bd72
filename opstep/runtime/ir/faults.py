"""What an op says of NaNs and infinities in its results: from which operand elements an element
comes, and which rules those may break.

A declaration stands with the op:

    faults = Faults(
        elementwise,
        Rule("log of a negative number", lambda x: x < 0),
        Rule("log of 0", lambda x: x == 0),
    )

`NO_FAULTS` says that finite operands always give finite results, so nobody need look at them.
Overflow needs no rule: it is told by computing the element again in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

INF = float("inf")

# Of each operand the part that a result's element is computed from, a slice for each axis; None
# for none of it.
Regions = Sequence["tuple[slice, ...] | None"]


class Site(NamedTuple):
    """One element of result `result`. `operands` (None: absent) and `results` are arrays."""

    index: tuple[int, ...]
    result: int
    operands: Sequence[Any]
    results: Sequence[Any]
    attrs: dict[str, Any]


Relation = Callable[[Site], Regions]


class Rule(NamedTuple):
    """`text` says what is wrong, without numbers.

    `broken` is given the operands' parts in f64, those that are there, and the attributes by name
    if it takes any. It gives a bool, or the elements to blame: a mask for the first operand, or a
    tuple of one for each.
    """

    text: str
    broken: Callable[..., Any]

    def masks(self, parts: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
        """A mask, or a bool, for each operand; none where the rule is not broken."""
        code = self.broken.__code__
        accepts = code.co_kwonlyargcount or code.co_flags & 0x08  # keywords, or **
        found = self.broken(*parts, **attrs) if accepts else self.broken(*parts)
        masks = found if isinstance(found, tuple) else (found,)
        broken = any(bool(m.any()) if hasattr(m, "any") else bool(m) for m in masks)
        return masks if broken else ()


class Faults:
    """The relation of an op's results to its operands, and its rules, the first that fits first.

    `value`, where the oracle cannot be asked about a part of the operands, gives an element of
    these parts: ``value(site, parts)``.
    """

    def __init__(self, relation: Relation, *rules: Rule, value: Callable[..., Any] | None = None):
        self.relation = relation
        self.rules = rules
        self.value = value


def all_elements(site: Site) -> Regions:
    """Any element may come from all of them."""
    return [None if a is None else (slice(None),) * a.ndim for a in site.operands]


UNKNOWN = Faults(all_elements)
NO_FAULTS = Faults(all_elements)


# --- what rules look for --------------------------------------------------------------------------


def infinite(x: Any) -> Any:
    return abs(x) == INF


def opposed(x: Any) -> Any:
    """Infinities of both signs among the elements: their sum is undefined."""
    above, below = x == INF, x == -INF
    return (above | below) & bool(above.any() and below.any())
