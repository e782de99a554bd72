"""Ops that move elements, joined into one copy."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import numpy as np
import pytest

import opstep
from opstep.runtime.ir.strided import Places, Strided, Untellable
from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.plan.lower import lower
from opstep.runtime.plan.plan import Run
from opstep.runtime.plan.viewing import shown, without_idle_moves

HEADS = """\
graph main(c: f32[2, 5, 18]) -> f32[2, 3, 5, 2], f32[2, 3, 5, 2], f32[5, 2, 6] {
  q, k, v = split(c, sizes=[6, 6, 6], axis=2)
  a = reshape(q, shape=[2, 5, 3, 2])
  b = transpose(a, perm=[0, 2, 1, 3])
  d = reshape(k, shape=[2, 5, 3, 2])
  e = transpose(d, perm=[0, 2, 1, 3])
  f = transpose(v, perm=[1, 0, 2])
  return b, e, f
}
"""


def launched(plan) -> list[str]:
    """What runs, with what it is made of."""
    steps = [plan.steps[i.step] for i in plan.instructions if isinstance(i, Run)]
    return [
        "+".join(m.op.name for m in s.members if not m.op.traits.reinterprets) or s.op.name
        for s in steps
        if s.launches
    ]


def test_attention_heads_are_copied_once():
    program = opstep.loads(HEADS)
    c = np.arange(180, dtype=np.float32).reshape(2, 5, 18)
    result = program.run("main", {"c": c})
    assert launched(result.plan) == ["split+transpose"] * 3
    q, k, v = np.split(c, 3, axis=2)
    heads = [t.reshape(2, 5, 3, 2).transpose(0, 2, 1, 3) for t in (q, k)]
    for found, expected in zip(result.outputs, [*heads, v.transpose(1, 0, 2)], strict=True):
        assert np.array_equal(found, expected)


AGAIN = "  u = transpose(a, perm=[1, 0])\n  y = transpose(u, perm=[1, 0])"


@pytest.mark.parametrize(
    "last, ran",
    [
        ("  y = exp(b)", {"split", "transpose", "exp"}),  # b is read by others
        ("  y = identity(a)", {"split", "transpose", "identity"}),  # made with b
        (AGAIN, {"split+transpose", "split+transpose+transpose"}),
    ],
)
def test_what_others_read_is_made_for_them(last, ran):
    lines = ["graph main(c: f32[4, 6]) -> f32[3, 4], f32[4, 3] {"]
    lines += ["  a, b = split(c, sections=2, axis=1)", "  t = transpose(b, perm=[1, 0])"]
    program = opstep.loads("\n".join([*lines, last, "  return t, y", "}"]))
    c = np.random.default_rng(0).random((4, 6), np.float32)
    found = program.run("main", {"c": c})
    assert set(launched(found.plan)) == ran
    debugged = program.run("main", {"c": c}, mode="debug")
    for a, b in zip(found.outputs, debugged.outputs, strict=True):
        assert np.array_equal(a, b)


IDLE = """\
graph main(x: f32[1, 4, 1, 6]) -> f32[4, 6], f32[1, 4, 6, 1], f32[4, 1, 6] {
  a = exp(x)
  b = transpose(a, perm=[1, 2, 0, 3])
  c = slice(b, starts=[0], ends=[4], axes=[0])
  d = reshape(c, shape=[4, 6])
  e = neg(d)
  f = transpose(a, perm=[0, 1, 3, 2])
  g = transpose(b, perm=[2, 0, 3, 1])
  h = select(g, index=0)
  i = transpose(h, perm=[0, 2, 1])
  j = neg(i)
  return e, f, j
}
"""


def test_copies_with_all_elements_in_their_order_are_left_out():
    """But for what a caller is given, which is to have memory of its own."""
    program = opstep.loads(IDLE)
    x = np.random.default_rng(0).random((1, 4, 1, 6), np.float32)
    found = program.run("main", {"x": x})
    assert sorted(launched(found.plan)) == ["exp", "neg", "neg", "transpose"]
    expected = program.run("main", {"x": x}, mode="debug")
    for a, b in zip(found.outputs, expected.outputs, strict=True):
        assert a.tobytes() == b.tobytes()
    flat = without_idle_moves(lower(program.verified, "main", [TensorType(f32, x.shape)]))
    assert {c for s, c in zip(flat.steps, flat.costs, strict=True) if s.op is shown} == {1}


def test_named_tensors_are_not_read_later_than_written():
    program = opstep.loads(
        "state s: f32[2, 3] = 1\n"
        "graph main() -> f32[2] {\n"
        "  t = transpose(s, perm=[1, 0])\n  n = mul(s, 2.0)\n  s <- n\n"
        "  y = select(t, index=1)\n  return y\n}\n"
    )
    assert [program.run("main").outputs[0].tolist() for _ in range(2)] == [[1, 1], [2, 2]]


def moves(random: Random, name: str, shape: list[int]) -> tuple[str, list[str], list[list[int]]]:
    """A line of an op that moves elements, its results and their shapes."""
    kind = random.choice(("transpose", "select", "slice", "split", "reshape", "squeeze"))
    rank, axis = len(shape), random.randrange(max(len(shape), 1)) if shape else 0
    new = f"{name}0"
    if kind == "select" and rank > 1:
        index = random.randrange(-shape[axis], shape[axis])
        rest = shape[:axis] + shape[axis + 1 :]
        return f"{new} = select({name}, index={index}, axis={axis})", [new], [rest]
    if kind == "slice":
        step = random.choice((1, 1, 2, -1))
        first, last = sorted(random.choices(range(shape[axis] + 1), k=2))
        first, last = (first, last) if step > 0 else (last, first)
        count = len(range(shape[axis])[first:last:step])
        if count:
            bounds = f"starts=[{first}], ends=[{last}], axes=[{axis}], steps=[{step}]"
            rest = [*shape[:axis], count, *shape[axis + 1 :]]
            return f"{new} = slice({name}, {bounds})", [new], [rest]
    if kind == "split" and shape[axis] > 1:
        cut = random.randrange(1, shape[axis])
        parts = [cut, shape[axis] - cut]
        names = [f"{name}{k}" for k in range(2)]
        shapes = [[*shape[:axis], n, *shape[axis + 1 :]] for n in parts]
        return f"{', '.join(names)} = split({name}, sizes={parts}, axis={axis})", names, shapes
    if kind == "reshape":
        total, found = int(np.prod(shape)), []
        while total > 1:
            n = random.choice([d for d in range(2, total + 1) if total % d == 0])
            found.append(n)
            total //= n
        found.insert(random.randrange(len(found) + 1), 1)
        return f"{new} = reshape({name}, shape={found})", [new], [found]
    perm = random.sample(range(rank), rank)
    return f"{new} = transpose({name}, perm={perm})", [new], [[shape[p] for p in perm]]


def random_moves(seed: int) -> tuple[opstep.Program, np.ndarray]:
    """A program that moves elements about, and what it is given."""
    random = Random(seed)
    alive = [("x", [random.choice((1, 2, 3, 4, 6)) for _ in range(random.randint(2, 4))])]
    start, lines, outputs = alive[0][1], [], []
    while alive and len(lines) < 12:
        name, shape = alive.pop(random.randrange(len(alive)))
        if name != "x" and random.random() < 0.15:
            lines.append(f"{name}n = neg({name})")
            name = f"{name}n"
        line, names, shapes = moves(random, name, shape)
        lines.append(line)
        alive += zip(names, shapes, strict=True)
        if random.random() < 0.1:
            outputs.append((name, shape))
    outputs += alive
    types = ", ".join(f"f32{s}" for _, s in outputs)
    body = "\n  ".join([*lines, f"return {', '.join(n for n, _ in outputs)}"])
    program = opstep.loads(f"graph main(x: f32{start}) -> {types} {{\n  {body}\n}}\n")
    return program, np.random.default_rng(seed).random(start, np.float32)


@pytest.mark.parametrize("block", range(4))
def test_random_moves_give_the_same_bits(block):
    joined = idle = 0
    for seed in range(40 * block, 40 * block + 40):
        program, x = random_moves(seed)
        found = program.run("main", {"x": x})
        expected = program.run("main", {"x": x}, mode="debug")
        for a, b in zip(found.outputs, expected.outputs, strict=True):
            assert np.array_equal(a, b), program["main"]
        joined += any("+" in name for name in launched(found.plan))
        idle += any(step.op.name == "shown" for step in found.plan.steps)
    assert joined > 10 and idle > 5


def elements(places: Places) -> np.ndarray:
    """The indices in memory, in the shape of what is there."""
    found = np.array(places.start)
    for axis in places.axes:
        own = np.zeros(1, int)
        for n, step in axis:
            own = (own[:, None] + np.arange(n) * step).reshape(-1)
        found = found[..., None] + own
    return found


@pytest.mark.parametrize("seed", range(50))
def test_places_are_numpys(seed):
    random = Random(seed)
    shape = [random.choice((1, 2, 3, 4)) for _ in range(random.randint(1, 4))]
    array, view = np.arange(np.prod(shape)).reshape(shape), Places.whole(shape)
    for _ in range(5):
        axes = random.sample(range(array.ndim), array.ndim)
        array, view = array.transpose(axes), view.permuted(axes)
        axis = random.randrange(array.ndim)
        first = random.randrange(array.shape[axis])
        count = random.randint(1, array.shape[axis] - first)
        flat = random.choice(([array.size], [1, array.size], list(array.shape[::-1])))
        with suppress(Untellable):
            view = view.along(axis, first, count)
            array = array[(slice(None),) * axis + (slice(first, first + count),)]
        with suppress(Untellable):
            view = view.reshaped(flat) if random.random() < 0.7 else view.reshaped(array.shape)
            array = array.reshape(view.shape)
    assert np.array_equal(elements(view), array)
    if (strided := view.strided()) is not None:
        assert np.array_equal(elements(Places.of(strided)), array)


def test_axes_are_put_together_and_taken_apart_again():
    heads = Places.whole([7, 2, 3 * 4 * 5]).along(2, 20, 20)  # the second of three
    together = heads.reshaped([7, 8, 5]).permuted([1, 0, 2])
    assert together.strided() is None
    again = together.reshaped([2, 4, 7, 5]).strided()
    assert again == Strided(20, (2, 4, 7, 5), (60, 5, 120, 1))
