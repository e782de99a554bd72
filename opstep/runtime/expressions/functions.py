"""All functions: importing this module registers them."""

from __future__ import annotations

from opstep.runtime.expressions import across_ranks, elementwise, inspection, reductions, shaping
from opstep.runtime.expressions.registry import FUNCTIONS, Function

FAMILIES = (
    reductions.REDUCTIONS,
    reductions.PREDICATES,
    inspection.INSPECTION,
    inspection.TIME,
    across_ranks.RANKS,
    shaping.ORDER,
    shaping.SHAPES,
    elementwise.ELEMENTWISE,
)


def by_family() -> dict[str, list[Function]]:
    """Functions by what they are for, each family in the order of names."""
    found = {family: [] for family in FAMILIES}
    for name in sorted(FUNCTIONS):
        found[FUNCTIONS[name].family].append(FUNCTIONS[name])
    return found
