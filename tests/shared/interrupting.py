"""Signals at moments that processor time decides, and training programs that are interrupted."""

from __future__ import annotations

import asyncio
import ctypes
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

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
TRIES = 40  # for each interrupt that is to meet a run
X = {"x": np.linspace(-1.0, 1.0, 64 * 64, dtype=np.float32).reshape(64, 64)}


def values(program: opstep.Program) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in program.params.items()}


Trajectories = dict[str, list[dict[str, bytes]]]


def trajectories_on(device: str) -> Trajectories:
    """Of each program the named tensors before the first step and after each."""
    found: Trajectories = {}
    for name, text in PROGRAMS.items():
        program = opstep.loads(text)
        seen = found[name] = [values(program)]
        program.run(
            "main", X, device=device, streams=1, steps=STEPS,
            on_step=lambda seen=seen, program=program: seen.append(values(program)),
        )  # fmt: skip
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
def signalled(number: int, seconds: float) -> Iterator[None]:
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


class Interrupted:
    """A run of one of the programs, recorded, to be interrupted; `told`: steps told so far."""

    def __init__(self, folder: Path, name: str, plan: dict):
        self.path = folder / f"{name}.db"
        self.name = name
        self.plan = plan
        self.program = opstep.loads(PROGRAMS[name])
        self.recording = opstep.Recording(workspace=self.path)
        self.told = 0

    def tell(self) -> None:
        self.told += 1

    def arguments(self) -> dict:
        rest = {"steps": STEPS, "recording": self.recording, "on_step": self.tell}
        return {"graph": "main", "inputs": X, **rest, **self.plan}

    def check(self, trajectories: Trajectories) -> None:
        """What it has left behind is its last step told."""
        self.recording.close()
        expected, where = trajectories[self.name][self.told], (self.name, self.plan, self.told)
        assert values(self.program) == expected, where
        if not self.recording.runs:  # it was stopped before it began
            assert self.told == 0
            return
        with opstep.Workspace(self.path) as ws:
            run = ws.run(self.recording.runs[0].key)
            assert run.steps == self.told, where
            assert run.status == "interrupted" or self.told == STEPS, where
            kept = [t for t in run.tensors if t.kind != "input" and t.step == self.told - 1 >= 0]
            for tensor in (t for t in kept if t.name in expected):
                assert ws.elements(tensor).tobytes() == expected[tensor.name], where
            if self.told:
                again = ws.rerun(run)
                assert again.identical, (where, again.different, again.error)
                assert set(again.same) & set(expected), where


def _cases(plan: dict, seed: int):
    """Programs by turns, each with what its moment is drawn from."""
    for k in count():
        name = list(PROGRAMS)[k % len(PROGRAMS)]
        yield name, random.Random(f"{k} {seed} {plan}")


def _processor_time(folder: Path, name: str, plan: dict) -> float:
    """Seconds that an undisturbed run takes, once all is compiled."""
    for _ in range(2):
        run = Interrupted(folder, name, plan)
        began = time.process_time()
        with run.recording:
            run.program.run(**run.arguments())
        took = time.process_time() - began
    return took


def runs_signalled(
    folder: Path, trajectories: Trajectories, plan: dict, wanted: int, number: int
) -> None:
    """Interrupts so many runs, each at a random moment, and checks what each leaves. Some moments
    are missed: a run may take less time than another.
    """
    ended = SystemExit if number == signal.SIGTERM else KeyboardInterrupt
    took: dict[str, float] = {}
    met = 0
    for name, rng in islice(_cases(plan, number), TRIES * wanted):
        if name not in took:
            took[name] = _processor_time(folder, name, plan)
        run = Interrupted(folder, name, plan)
        try:
            with run.recording, signalled(number, 0.8 * rng.random() * took[name]):
                run.program.run(**run.arguments())
        except ended:
            met += 1
        run.check(trajectories)
        if met == wanted:
            return
    raise AssertionError(f"{met} of {TRIES * wanted} runs were interrupted")


def tasks_cancelled(folder: Path, trajectories: Trajectories, plan: dict, wanted: int) -> None:
    """Cancels so many tasks, or gives them too little time, and checks what each leaves."""

    async def cancelled(run: Interrupted, rounds: int) -> None:
        task = asyncio.ensure_future(run.program.run_async(**run.arguments()))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await task

    async def too_slow(run: Interrupted, rounds: int) -> None:
        await asyncio.wait_for(run.program.run_async(**run.arguments()), rounds * 1e-4)

    met = 0
    for name, rng in islice(_cases(plan, 0), TRIES * wanted):
        run = Interrupted(folder, name, plan)
        end = rng.choice([cancelled, too_slow])
        try:
            asyncio.run(end(run, rng.randrange(200)))
        except (asyncio.CancelledError, TimeoutError):
            met += 1
        run.check(trajectories)
        if met == wanted:
            return
    raise AssertionError(f"{met} of {TRIES * wanted} tasks were cancelled")
