"""A graph with work for several streams, for tests of what is recorded of them."""

from __future__ import annotations

SIZE = 131072  # elements: enough for the planner to use several streams


def branching(width: int, depth: int) -> str:
    """Chains that share their input and meet at the end, and a view of the sum."""
    lines, ends = [], []
    for w in range(width):
        value = "x"
        for d in range(depth):
            lines.append(f"  b{w}_{d} = tanh({value})")
            value = f"b{w}_{d}"
        ends.append(value)
    total = ends[0]
    for w, end in enumerate(ends[1:]):
        lines.append(f"  s{w} = add({total}, {end})")
        total = f"s{w}"
    lines.append(f"  view = reshape({total}, shape=[2, {SIZE // 2}])")
    head = f"graph main(x: f32[{SIZE}]) -> f32[2, {SIZE // 2}] {{"
    return "\n".join([head, *lines, "  return view", "}", ""])
