"""Signals at moments that processor time decides, and training programs that are interrupted."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import opstep

# Updates stand at the end, on several streams.
LAYERS = """\
param a: f32[64, 96] = normal(std=0.1)
param b: f32[64, 96] = normal(std=0.1)
state steps: i64[] = 0

graph main(x: f32[64, 64]) -> f32[] {
  l = matmul(x, a)
  m = tanh(l)
  n = matmul(x, b)
  o = sigmoid(n)
  both = sub(m, o)
  sq = square(both)
  loss = mean(sq)
  da = mul(a, 0.01)
  db = mul(b, 0.02)
  a2 = sub(a, da)
  b2 = sub(b, db)
  mixed = add(b2, a)
  next = add(steps, 1)
  a <- a2
  b <- mixed
  steps <- next
  return loss
}
"""
# Tensors change in the middle: in a loop, in a branch, in a called graph.
EARLY = """\
param w: f32[64, 64] = normal(std=0.1)
state turns: i64[] = 0
state last: f32[64] = zeros()

graph main(x: f32[64, 64]) -> f32[] {
  p = matmul(x, w)
  h = tanh(p)
  rows = mean(h, axes=[1])
  far = while(rows, test=small, body=grow)
  m = mean(far)
  high = greater(m, 0.0)
  kept = cond(high, far, then=keep, else=drop)
  s = nudge(kept, w)
  wide = exp(s)
  wider = mean(wide)
  fine = isfinite(wider)
  assert fine, "it went wild"
  return wider
}
graph small(v: f32[64]) -> bool[] {
  a = abs(v)
  m = max(a)
  y = less(m, 4.0)
  return y
}
graph grow(v: f32[64]) -> f32[64] {
  n = add(turns, 1)
  t = mul(last, 0.1)
  u = add(v, t)
  y = mul(u, 1.5)
  turns <- n
  last <- y
  return y
}
graph keep(v: f32[64]) -> f32[64] {
  y = mul(v, 0.5)
  last <- y
  return y
}
graph drop(v: f32[64]) -> f32[64] {
  y = neg(v)
  last <- v
  return y
}
graph nudge(v: f32[64], like: f32[64, 64]) -> f32[64, 64] {
  t = tanh(v)
  d = mul(t, 0.01)
  y = sub(like, d)
  w <- y
  return y
}
"""
PROGRAMS = {"layers": LAYERS, "early": EARLY}
PLANS = [
    {"mode": "async"},
    {"mode": "async", "streams": 1},
    {"mode": "async", "streams": 2, "alloc": "fresh"},
    {"mode": "async", "streams": 4, "fill": "nan"},
    {"mode": "async", "streams": 4, "sync": "op"},
    {"mode": "async", "streams": 4, "chaos": 3},
    {"mode": "debug"},
    {"mode": "debug", "streams": 3},
]
STEPS = 24
X = {"x": np.linspace(-1.0, 1.0, 64 * 64, dtype=np.float32).reshape(64, 64)}


def values(program: opstep.Program) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in program.params.items()}


def trajectory(text: str, steps: int = STEPS) -> list[dict[str, bytes]]:
    """The named tensors before the first step and after each."""
    program = opstep.loads(text)
    found = [values(program)]
    program.run("main", X, streams=1, steps=steps, on_step=lambda: found.append(values(program)))
    return found


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * 48),
    )


class _Times(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("every", "every_ns", "after", "after_ns"))


@contextmanager
def signalled(number: signal.Signals, seconds: float) -> Iterator[None]:
    """The signal comes when this process has used so much processor time, unless the block is
    over.
    """
    system, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = _Event(None, number, 0)
    if system.timer_create(time.CLOCK_PROCESS_CPUTIME_ID, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError("no timer of processor time")
    after = max(int(seconds * 1e9), 1)
    times = _Times(0, 0, after // 10**9, after % 10**9)
    system.timer_settime(timer, 0, ctypes.byref(times), None)
    try:
        yield
    finally:
        system.timer_delete(timer)
