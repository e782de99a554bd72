"""Runs of a program in each mix of the four switches, and a program with a loop."""

from __future__ import annotations

import itertools

import numpy as np

import opstep

MIXES = [
    {"streams": s, "alloc": a, "fill": f, "sync": y}
    for s, a, f, y in itertools.product((1, 3), ("reuse", "fresh"), ("none", "nan"), ("none", "op"))
]


def in_every_mix(text, graph=None, inputs=None, steps=1, **options):
    """Runs in each mix of the four switches, on a fresh program each; all bits agree. Gives the
    first.
    """
    results, tensors = [], []
    for mix in MIXES:
        program = opstep.loads(text)
        results.append(program.run(graph, inputs, steps=steps, **mix, **options))
        tensors.append(dict(program.params))
    for other, named in zip(results, tensors, strict=True):
        assert other.names == results[0].names
        for a, b in zip(results[0].outputs, other.outputs, strict=True):
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()
        for name, value in named.items():
            np.testing.assert_array_equal(value, tensors[0][name])
        assert not other.unwritten
    return results[0], tensors[0]


LOOP = """
graph large(x: f32[N], n: i32[]) -> bool[] {
  m = max(x)
  big = greater(m, 1.0)
  return big
}
graph halve(x: f32[N], n: i32[]) -> f32[N], i32[] {
  h = mul(x, 0.5)
  k = add(n, 1)
  return h, k
}
graph main(x: f32[N]) -> f32[N], i32[] {
  y, turns = while(x, 0, test=large, body=halve)
  z = neg(y)
  return z, turns
}
"""
