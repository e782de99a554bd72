"""What is recorded of runs on a GPU: each op once, where and when it can have run; statistics."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from itertools import count, pairwise

import numpy as np
import pytest

import opstep
from opstep.api import sources
from opstep.runtime.device.cuda.recording.records import issued
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.plan.plan import Fuse
from opstep.runtime.recording import FILL, GraphLaunch, HostRecord, StreamRecord
from opstep.runtime.statistics import decode
from opstep.trace import recording as recordings

EXAMPLES = ["lenet", "while", "unet_two", "branches"]


class Notes(Recorder):
    """Takes records down, of every run that it is given."""

    fuses = Fuse.NOTHING

    def __init__(self, with_stats=False):
        self.records = []
        self._with_stats = with_stats
        self._numbers, self._steps = count(), count()

    def begin_run(self, info):
        self.info = info
        return self

    def values_to_record(self, plan):
        if not self._with_stats:
            return []
        return [(k, v) for k, s in enumerate(plan.steps) if s.launches for v in s.results]

    def begin_step(self):
        return next(self._steps), self._with_stats

    def next_number(self):
        return next(self._numbers)

    def add_record(self, record):
        self.records.append(record)

    def end_step(self, outputs, failed=False):
        """All records of the step are there."""

    def end_run(self, error, unwritten):
        """There is nothing to close."""


def given(program, size=4):
    graph = program.graph("main")
    dims = (d for b in graph.inputs for d in b.type.shape)
    sizes = {str(d): size for d in dims if not isinstance(d, int)}
    return sources.gather(program, graph, ["random"], sizes, 0)


def recorded(name, device="cuda", with_stats=False, **switches):
    program, notes = opstep.load(f"examples/{name}.opg"), Notes(with_stats)
    inputs = given(program)
    result = program.run("main", inputs, device=device, recording=notes, **switches)
    return result, notes, inputs


def check(records):
    """Each op of a plan has one row, at a time that can be; gives how many activations there are of
    each kind: launched as graphs or not.
    """
    found = Counter()
    by_activation = {}
    for record in records:
        by_activation.setdefault(record.activation.number, []).append(record)
    for group in by_activation.values():
        (host,) = (r for r in group if isinstance(r, HostRecord))
        streams = [r for r in group if isinstance(r, StreamRecord)]
        layout = host.activation.layout
        wanted = [k for k, step in enumerate(layout.plan.steps) if step.launches]
        assert sorted(s for r in streams for s in layout.rows[r.stream]) == wanted
        began = issued(layout, host.launches)
        ends = {r.stream: r.times for r in streams}
        for record in streams:
            times = record.times
            assert (times[:, 0] >= began[record.stream]).all()
            assert (times[:, 1] - times[:, 0] > 1).all()  # 1 ns: not known
            waits = [w for w in layout.waits if w.stream == record.stream]
            spans = [*times.tolist(), *record.moves[:, :2].tolist()]
            assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))
            for wait, (begin, end) in zip(waits, record.waits.tolist(), strict=True):
                assert begin <= end
                if wait.row < len(times) and wait.source_row >= 0:
                    assert times[wait.row, 0] >= ends[wait.source][wait.source_row, 0]
        assert layout.kernels.keys() >= {
            (r.stream, row) for r in streams for row in range(len(r.times))
        }
        found[any(isinstance(one, GraphLaunch) for one in layout.launches)] += 1
    return found


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("streams", [1, 4])
def test_async_runs(name, streams):
    result, notes, inputs = recorded(name, streams=streams, steps=6)
    kinds = check(notes.records)
    assert kinds[True] > kinds[False]  # captured stretches stay captured
    bare = opstep.load(f"examples/{name}.opg").run("main", inputs, device="cuda", steps=6)
    for a, b in zip(result.values(), bare.values(), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", EXAMPLES)
def test_debug_runs(name):
    _, notes, _ = recorded(name, mode="debug", steps=2)
    assert check(notes.records)[True] == 0
    moves = [m for r in notes.records if isinstance(r, StreamRecord) for m in r.moves.tolist()]
    assert sum(kind == FILL for *_, kind in moves) > 2


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("mode", ["async", "debug"])
def test_statistics_are_those_of_the_cpu(name, mode):
    def taken(device):
        _, notes, _ = recorded(name, device, with_stats=True, mode=mode, steps=3)
        found = {}
        for r in notes.records:
            if isinstance(r, StreamRecord):
                a = r.activation
                for (step, value), words in zip(a.layout.stats[r.stream], r.stats, strict=True):
                    t = a.plan.values[value].type
                    figures = decode(words, t.dtype)
                    found.setdefault((a.plan.graph, a.step, a.turn, step, value), figures)
        return found

    ours, theirs = taken("cuda"), taken("cpu")
    assert ours.keys() == theirs.keys()
    for key, a in ours.items():
        b = theirs[key]
        assert (a.count, a.nan, a.posinf, a.neginf) == (b.count, b.nan, b.posinf, b.neginf)
        scale = max(b.absmax or 0, 1e-30)
        for what in ("min", "max", "mean", "std"):
            x, y = getattr(a, what), getattr(b, what)
            assert (x is None) == (y is None)
            assert x is None or abs(x - y) < 1e-3 * scale, (key, what)


@pytest.mark.parametrize("name", [*EXAMPLES, "unet"])
@pytest.mark.parametrize("streams", [1, 4])
def test_statistics_are_taken_before_a_tensor_is_overwritten(name, streams):
    def taken(**switches):
        _, notes, _ = recorded(name, with_stats=True, steps=8, **switches)
        streams = (r for r in notes.records if isinstance(r, StreamRecord))
        return Counter(words.tobytes() for r in streams for words in r.stats)

    waiting = taken(streams=1, sync="op")
    assert waiting.total() > 8
    assert taken(streams=streams) == waiting


COUNTING = """
state n: f32[64, 4096] = ones()

graph main(x: f32[64, 4096]) -> f32[64, 4096], f32[64, 4096], f32[64, 4096] {
  a = mul(x, n)
  b = add(x, n)
  c = exp(a)
  d = tanh(b)
  one = full(value=1, shape=[], dtype=f32)
  next = add(n, one)
  n <- next
  return c, d, a
}
"""


def test_statistics_on_several_streams_are_those_of_their_step():
    """They are copied out behind the graph that takes them, whichever stream that is on."""

    def taken(**switches):
        program, notes = opstep.loads(COUNTING), Notes(with_stats=True)
        x = np.random.default_rng(0).standard_normal((64, 4096)).astype(np.float32)
        program.run("main", {"x": x}, device="cuda", steps=30, recording=notes, **switches)
        return {
            (r.activation.step, value): words.tobytes()
            for r in notes.records if isinstance(r, StreamRecord)
            for (_, value), words in zip(
                r.activation.layout.stats[r.stream], r.stats, strict=True
            )
        }  # fmt: skip

    waiting = taken(streams=1, sync="op")
    assert len(waiting) >= 30 * 6
    assert taken(streams=4) == waiting


def test_times_are_those_that_a_profiler_tells():
    """Ops of 10 us and more: PyTorch's profiler asks the same GPU by other means."""
    import torch

    text = """
graph main(x: f32[4096, 4096]) -> f32[4096, 4096] {
  a = exp(x)
  b = matmul(a, x)
  c = tanh(b)
  d = sum(c, axes=[1], keepdims=true)
  e = sub(c, d)
  return e
}
"""
    program, notes = opstep.loads(text), Notes()
    x = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32)
    how = {"device": "cuda", "steps": 40, "streams": 1, "kernels": "numba"}
    program.run("main", {"x": x}, recording=notes, **how)
    rows = [r.times for r in notes.records if isinstance(r, StreamRecord)]
    ours = np.median([np.diff(times)[:, 0] for times in rows[10:]], axis=0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        program.run("main", {"x": x}, recording=Notes(), **how)
    ran = sorted((e.time_range.start, e.time_range.elapsed_us(), e.name) for e in profile.events())
    told = [us * 1e3 for _, us, name in ran if not re.search("read_clock|Memcpy|Memset", name)]
    products = [k for k, ns in enumerate(told) if ns > 1e6]  # the second of five
    assert len(products) >= 40  # before them, kernels that are tried
    theirs = np.median([told[k - 1 : k + 4] for k in products[-30:]], axis=0)
    assert (np.abs(ours - theirs) < 1000 + 0.03 * theirs).all(), (ours, theirs)


def test_several_contexts_at_once():
    program = opstep.load("examples/unet_two.opg")
    inputs, notes = given(program, 2), [Notes() for _ in range(8)]

    def run(note):
        program.run("main", inputs, device="cuda", steps=20, recording=note)

    threads = [threading.Thread(target=run, args=(note,)) for note in notes[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def together():
        runs = (
            program.run_async("main", inputs, device="cuda", steps=20, recording=note)
            for note in notes[4:]
        )
        await asyncio.gather(*runs)

    asyncio.run(together())
    for note in notes:
        assert check(note.records) == {False: 1, True: 19}


def test_steps_come_in_order_and_whole(tmp_path, monkeypatch):
    put, order, records = recordings._Recorder._put, [], []

    def noted(self, method, argument, nbytes=0):
        if method == "add_record":
            records.append(argument)
            order.append((argument.activation.step, False))
        elif method == "end_step":
            order.append((argument.step, True))
        put(self, method, argument, nbytes)

    monkeypatch.setattr(recordings._Recorder, "_put", noted)
    program = opstep.load("examples/lenet.opg")
    inputs = given(program)
    files = {"trace": tmp_path / "run.pftrace", "workspace": tmp_path / "run.db"}
    with opstep.Recording(**files) as recording:
        for _ in range(30):
            program.run("main", inputs, device="cuda", recording=recording)
        program.run("main", inputs, device="cuda", steps=170, recording=recording)
    assert order == sorted(order)
    assert [step for step, ends in order if ends] == list(range(200))
    assert check(records).total() == 200
    assert recording.runs[0].info.title.startswith("GPU 0 (")


EXACT = """
graph main(x: f32[N, C], n: i64[N, C]) -> f16[N, C] {
  r = relu(x)
  m = neg(n)
  d = cast(r, dtype=f64)
  h = cast(x, dtype=f16)
  return h
}
"""


def test_quantiles_signs_and_channels_are_those_of_the_cpu(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 13), np.float32)
    x[::7] = np.nan
    inputs = {"x": x, "n": rng.integers(-(2**62), 2**62, x.shape)}
    with opstep.Recording(
        workspace=tmp_path / "runs.db", stats_also="quantiles,signed,channels", stats_every=2
    ) as recording:
        for device in ("cpu", "cuda"):
            opstep.loads(EXACT).run("main", inputs, steps=7, device=device, recording=recording)
    with opstep.Workspace(tmp_path / "runs.db") as ws:
        for table in ("quantiles", "signed", "channels"):
            first, second = (
                ws.sql(f"select * from {table} where run = ? order by step, op", [run]).rows
                for run in (1, 2)
            )
            assert len({row[1] for row in second}) == 1 + 4  # before the first; each other step
            told = [
                sorted((row[1:3] + row[4:] for row in rows), key=str) for rows in (first, second)
            ]
            assert told[0] == told[1], table
