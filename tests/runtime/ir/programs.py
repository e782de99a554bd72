"""Texts that several tests use."""

from __future__ import annotations


def chain(count: int) -> str:
    """A graph of many statements, as an importer writes them."""
    forms = (
        "add(v{0}, v{1})",
        "relu(v{0})",
        "mul(v{0}, 0.5)",
        'leaky_relu(v{0}, slope=0.1) at "model.py":{0}',
    )
    lines = [f"  v{k + 1} = {forms[k % 4].format(k, max(0, k - 3))}" for k in range(count)]
    head, tail = "graph f(v0: f32[N, 8]) -> f32[N, 8] {", f"  return v{count}\n}}\n"
    return "\n".join([head, *lines, tail])
