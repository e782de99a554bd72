"""What each op of a graph took, and the picture of it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace import bench, roofline
from opstep.trace.bench import Ceilings, Measured, measure

NET = """
graph main(x: f32[N, 8], w: f32[4, 8]) -> f32[4, N] {
  y = linear(x, w)
  z = relu(y)
  t = transpose(z, perm=[1, 0])
  return t
}
"""
TWICE = """
graph smaller(x: f32[2]) -> bool[] {
  s = sum(x, axes=[0], keepdims=false)
  b = less(s, 10.0)
  return b
}

graph double(x: f32[2]) -> f32[2] {
  y = mul(x, 2.0)
  return y
}

graph main(x: f32[2]) -> f32[2] {
  y = while(x, test=smaller, body=double)
  return y
}
"""


def op(name="conv2d", seconds=1e-3, nbytes=10**6, flops=10**9, type="f32[8, 4, 16, 16]", **more):
    line = {"site": f"main/{name}", "file": "a.opg", "line": 3, "dtype": "f32", "executions": 1.0}
    return Measured(op=name, type=type, seconds=seconds, nbytes=nbytes, flops=flops, **line | more)


def test_every_op_is_measured():
    given = {"x": np.ones((16, 8), np.float32), "w": np.ones((4, 8), np.float32)}
    found = measure(opstep.loads(NET), "main", given, 4)
    by_name = {o.op: o for o in found}
    linear = by_name["linear"]
    assert (linear.type, linear.dtype, linear.line) == ("f32[16, 4]", "f32", 3)
    assert (linear.nbytes, linear.flops) == (4 * (16 * 8 + 4 * 8 + 16 * 4), 2 * 16 * 4 * 8)
    assert by_name["transpose"].flops == 0
    assert all(o.seconds > 0 and o.executions == 1 for o in found)
    assert bench.dtypes_of(found) == ["f32"]
    assert bench.step_seconds(opstep.loads(NET), "main", given, 4) > 0


def test_ops_of_a_loop_are_counted():
    found = measure(opstep.loads(TWICE), "main", {"x": np.ones(2, np.float32)}, 5)
    assert {o.op: o.executions for o in found}["mul"] == 3


def test_rates_and_shares():
    one = op(seconds=2e-3, nbytes=10**6, flops=10**9)
    roof = Ceilings(1e9, {"f32": 1e12})
    assert (one.bandwidth, one.rate, one.intensity) == (5e8, 5e11, 1000)
    assert roof.shares(one) == (0.5, 0.5)
    assert roof.shares(op(flops=0)) == (1.0, None)
    assert roof.shares(op(dtype=""))[1] is None


def test_ceilings_are_those_of_the_device(monkeypatch):
    monkeypatch.setattr(bench, "SIZES", bench.Sizes(1 << 16, 64))
    found = bench.ceilings("cpu", ["f32", "bf16"])
    assert found.bandwidth > 1e8
    assert set(found.arithmetic) == {"f32", "bf16"}
    assert all(rate > 1e7 for rate in found.arithmetic.values())


# --- the picture ----------------------------------------------------------------------------------


def test_ops_alike_are_one_dot():
    points = roofline.gathered(
        [op(seconds=1e-3), op(seconds=1.1e-3), op(seconds=9e-3), op("relu", flops=0)]
    )
    assert [(p.op.op, p.count) for p in points] == [("conv2d", 1), ("conv2d", 2), ("relu", 1)]
    assert sum(p.share for p in points) == pytest.approx(1)


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_is_the_same_each_time(tmp_path, kind):
    ops = [op(flops=10**k, seconds=k * 1e-4) for k in range(5, 11)] + [op("concat", flops=0)]
    roof = Ceilings(1e9, {"f32": 1e12, "bf16": 5e12})
    for name in ("a", "b"):
        roofline.draw(tmp_path / f"{name}.{kind}", ops, roof, "Graph main", "cpu")
    first = (tmp_path / f"a.{kind}").read_bytes()
    assert len(first) > 1000
    assert first == (tmp_path / f"b.{kind}").read_bytes()


@pytest.mark.parametrize(
    "ops",
    [
        [op()],
        [op(flops=0)],
        [op(seconds=1e-9, nbytes=1, flops=1)],
        [op(seconds=100.0, nbytes=10**13, flops=10**15)],
        [op(f"op{k}", flops=10**9 + k) for k in range(60)],
        [op(type="f32[]"), op(type="f32[2], i64[2]")],
    ],
)
def test_odd_pictures(tmp_path, ops):
    roofline.draw(tmp_path / "a.png", ops, Ceilings(1e9, {"f32": 1e12}), "t", "b")
    roofline.draw(tmp_path / "b.png", ops, Ceilings(1e9, {}), "t", "b")


def test_no_picture_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError) as caught:
        roofline.check(tmp_path / "a.png")
    assert caught.value.diagnostics[0].hint == "pip install 'opstep[viewer]'"
