"""New values of named tensors: one after the other, where their memory can be shared."""

from __future__ import annotations

import numpy as np

import opstep

SIZE = 1 << 16
TEXT = (
    "".join(
        f"param w{k}: f32[{SIZE}] = normal(seed={k})\nstate m{k}: f32[{SIZE}]\n" for k in range(6)
    )
    + f"""
graph momentum(p: f32[A], g: f32[A], m: f32[A]) -> f32[A], f32[A] {{
  kept = mul(m, 0.9)
  new_m = add(kept, g)
  change = mul(new_m, 0.1)
  new_p = sub(p, change)
  return new_p, new_m
}}

graph train(g: f32[{SIZE}]) -> f32[] {{
UPDATES
  s = sum(w0)
  return s
}}
"""
)
LINES = [
    f"  p{k}, n{k} = momentum(w{k}, g, m{k})\n  w{k} <- p{k}\n  m{k} <- n{k}" for k in range(6)
]
TEXT = TEXT.replace("UPDATES", "\n".join(LINES))


def test_memory_does_not_grow_with_the_number_of_tensors():
    program = opstep.loads(TEXT)
    for streams in (1, 4):
        plan = program.plan("train", symbols={}, policy=opstep.policy(streams=streams))
        assert plan.arena <= 4 * 4 * SIZE
    fresh = program.plan("train", symbols={}, policy=opstep.policy("debug"))
    assert [s.op.name for s in fresh.steps[-12:]] == ["update"] * 12


def test_the_same_bits_in_any_order():
    g = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    left = []
    for options in ({"mode": "debug"}, {"streams": 1}, {"streams": 4}):
        program = opstep.loads(TEXT)
        for k in range(6):
            program.params[f"m{k}"] = g
        found = program.run("train", {"g": g}, steps=3, **options)
        left.append([a.tobytes() for a in (*found.outputs, *program.params.values())])
    assert left[0] == left[1] == left[2]


def test_swapped_and_chained_tensors():
    """What an update overwrites is read before, wherever its reader stands."""
    text = """
state a: f32[4] = ones()
state b: f32[4] = zeros()
state c: f32[4] = zeros()

graph step(x: f32[4]) -> f32[4] {
  from_b = add(b, x)
  from_a = mul(a, 2.0)
  from_c = sub(c, from_a)
  a <- from_b
  b <- from_a
  c <- from_c
  y = mul(a, b)
  return y
}
"""
    x, values = np.arange(4, dtype=np.float32), []
    for mode in ("debug", "async"):
        program = opstep.loads(text)
        y = program.run("step", {"x": x}, mode=mode, steps=4).outputs[0]
        values.append([y.tolist(), *(v.tolist() for v in program.params.values())])
    assert values[0] == values[1]
    a, b, c = np.ones(4), np.zeros(4), np.zeros(4)
    for _ in range(4):
        y, a, b, c = a * b, b + x, a * 2, c - a * 2
    assert values[0] == [y.tolist(), a.tolist(), b.tolist(), c.tolist()]
