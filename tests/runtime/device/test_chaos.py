"""Streams that are late at random: orders change, results do not."""

from __future__ import annotations

import time

import numpy as np
import pytest

import opstep
from opstep.api.devices import Setup
from opstep.api.settings import RunSettings
from opstep.runtime.device import chaos
from opstep.runtime.ir.errors import InputError

WIDE = """\
param w: f32[64] = normal()

graph main(x: f32[64]) -> f32[64], f32[] {
  a = exp(x)
  b = sin(x)
  c = mul(a, w)
  d = mul(b, w)
  e = add(c, d)
  f = while(e, test=large, body=halved)
  s = sum(f)
  w <- f
  return f, s
}

graph large(v: f32[64]) -> bool[] {
  m = max(v)
  t = greater(m, 0.1)
  return t
}

graph halved(v: f32[64]) -> f32[64] {
  y = mul(v, 0.5)
  return y
}
"""


@pytest.mark.parametrize("mode", ["async", "debug"])
@pytest.mark.parametrize("seed", [0, 7])
def test_no_delay_changes_a_bit(mode, seed):
    x = np.linspace(-1, 1, 64, dtype="f4")
    calm = opstep.loads(WIDE).run(inputs={"x": x}, mode=mode, steps=3)
    late = opstep.loads(WIDE).run(inputs={"x": x}, mode=mode, steps=3, chaos=seed)
    for name in ("f", "s"):
        assert calm[name].tobytes() == late[name].tobytes()


def test_a_seed_gives_a_stream_the_same_delays(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    def delays(seed: int) -> list[float]:
        slept.clear()
        program, x = opstep.loads(WIDE), np.zeros(64, "f4")
        program.run(inputs={"x": x}, mode="debug", chaos=seed)
        return list(slept)

    first = delays(3)
    assert len(first) >= 5
    assert all(0 < s <= chaos.LONGEST_S for s in first)
    assert delays(3) == first
    assert delays(4) != first


def test_only_runs_that_ask_for_it_are_late(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    program, x = opstep.loads(WIDE), np.zeros(64, "f4")
    program.run(inputs={"x": x}, chaos=1)
    count = len(slept)
    assert count > 0
    program.run(inputs={"x": x})
    assert len(slept) == count


def test_work_on_streams_is_really_late():
    device = chaos.chaotic(opstep.loads(WIDE).on("cpu"), 5)
    stream, done = device.stream(), []
    began = time.perf_counter()
    for k in range(40):
        stream.submit(lambda k=k: done.append(k))
    stream.synchronize()
    assert done == list(range(40)), "the order of a stream is kept"
    assert time.perf_counter() - began > 40 * chaos.SHARE * chaos.MEAN_S / 4


def test_setups_know_where_delays_are():
    assert Setup(chaos=3).on("cpu").chaos == 3
    assert Setup(chaos=3).on("cuda").chaos == 3
    assert Setup(chaos=3).on("null").chaos is None
    with pytest.raises(InputError):
        RunSettings(kernels="fast", chaos=3)
