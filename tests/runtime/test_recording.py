"""What a run leaves behind, through `Program.run(recording=...)`: times, order, statistics."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

import numpy as np
import pytest
from branching import SIZE, branching

import opstep
from opstep.runtime.device.cpu.device import statistics_of
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.plan.plan import Run, Wait
from opstep.runtime.recording import HostRecord, StreamRecord
from opstep.runtime.statistics import WORDS, decode

LOOP = """
graph main(x: f32[N]) -> f32[N], f32[] {
  doubled = mul(x, 2.0)
  y = while(doubled, test=large, body=halve)
  total = sum(y)
  return y, total
}

graph large(x: f32[N]) -> bool[] {
  top = max(x)
  more = greater(top, 1.0)
  return more
}

graph halve(x: f32[N]) -> f32[N] {
  less = mul(x, 0.5)
  return less
}
"""

DTYPES = """
graph main(x: f32[A, B]) -> f32[A] {
  wide = cast(x, dtype=f64)
  half = cast(x, dtype=f16)
  brain = cast(x, dtype=bf16)
  whole = cast(x, dtype=i32)
  long = cast(x, dtype=i64)
  small = cast(x, dtype=i8)
  sign = greater(x, 0.0)
  root = sqrt(x)
  ratio = div(x, root)
  r = relu(x)
  r2 = relu(r)
  y = sum(r2, axes=[1])
  return y
}
"""

WAYS = [
    {"mode": "async", "streams": 1},
    {"mode": "async", "streams": 3},
    {"mode": "async", "streams": 2, "threads": 1, "alloc": "fresh"},
    {"mode": "debug"},
    {"mode": "debug", "streams": 2, "sync": "none"},
]


class Notes(Recorder):
    """A recording and its recorder: takes down everything, of every so many steps statistics."""

    def __init__(self, wanted=None, every: int = 1):
        self._wanted = wanted or (lambda step, name: True)
        self.every = every
        self.infos: list = []
        self.plans: list = []
        self.steps: list = []  # (outputs, number of records by then)
        self.records: list = []
        self.ends: list = []
        self.numbers = 0

    def begin_run(self, run):
        self.infos.append(run)
        return self

    def values_to_record(self, plan):
        self.plans.append(plan)
        steps = [(n, s) for n, s in enumerate(plan.steps) if not s.op.traits.host]
        pairs = [(n, v) for n, s in steps for v in s.results]
        return [(n, v) for n, v in pairs if self._wanted(plan.steps[n], plan.values[v].name)]

    def begin_step(self):
        number = len(self.steps)
        return number, number % self.every == 0

    def next_number(self):
        self.numbers += 1
        return self.numbers

    def add_record(self, record):
        assert not self.ends, "a record after the end of its run"
        self.records.append(record)

    def end_step(self, outputs, failed=False):
        self.steps.append(({n: a.copy() for n, a in outputs.items()}, len(self.records)))

    def end_run(self, error, unwritten):
        self.ends.append(error)

    # --- what tests ask for ---

    @property
    def streams(self) -> list[StreamRecord]:
        return [r for r in self.records if isinstance(r, StreamRecord)]

    @property
    def hosts(self) -> list[HostRecord]:
        return [r for r in self.records if isinstance(r, HostRecord)]

    def statistics(self) -> dict:
        """By step, number of the activation and name of the value."""
        found = {}
        for record in self.streams:
            layout, a = record.activation.layout, record.activation
            if record.stats is None:
                continue
            pairs = layout.stats[record.stream]
            assert record.stats.shape == (len(pairs), WORDS)
            for (_, value), words in zip(pairs, record.stats, strict=True):
                t = layout.plan.values[value]
                found[a.step, a.number, t.name] = decode(words, t.type.dtype)
        return found


class Values:
    """Listens to a run in debug mode: a copy of each value, by name."""

    def __init__(self):
        self.found: dict[str, np.ndarray] = {}

    def before(self, execution):
        pass

    def after(self, execution):
        for v, array in zip(execution.step.results, execution.results(), strict=True):
            self.found[execution.binding.plan.values[v].name] = array.copy()


def given(size: int | tuple[int, ...] = SIZE) -> dict:
    return {"x": np.random.default_rng(0).standard_normal(size).astype(np.float32)}


def recorded(text: str, inputs: dict, notes: Notes | None = None, **options) -> Notes:
    notes = notes or Notes()
    opstep.loads(text).run("main", inputs, recording=notes, **options)
    return notes


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_ops_of_a_stream_run_one_after_the_other(way):
    began = monotonic_ns()
    notes = recorded(branching(3, 8), given(), steps=3, **way)
    ended = monotonic_ns()
    assert len(notes.steps) == 3
    for step in range(3):
        seen = []
        for record in (r for r in notes.streams if r.activation.step == step):
            layout, times = record.activation.layout, record.times
            rows = layout.rows[record.stream]
            runs = [i for i in layout.plan.instructions if isinstance(i, Run)]
            launching = [
                i.step
                for i in runs
                if i.stream == record.stream and layout.plan.steps[i.step].launches
            ]
            assert rows == launching
            assert times.shape == (len(rows), 2)
            flat = [began, *times.reshape(-1).tolist(), ended]
            assert flat == sorted(flat)
            began_this = flat[1]
            assert began_this > began
            seen += rows
        plan = notes.plans[-1]
        assert sorted(seen) == [n for n, s in enumerate(plan.steps) if s.launches]
        assert "reshape" not in {plan.steps[n].op.name for n in seen}  # nothing runs for it


@pytest.mark.parametrize("way", [WAYS[1], WAYS[2], WAYS[4]], ids=str)
def test_streams_wait_for_what_they_need(way):
    notes = recorded(branching(3, 8), given(), steps=2, **way)
    waited = 0
    for step in range(2):
        records = {r.stream: r for r in notes.streams if r.activation.step == step}
        assert len(records) > 1
        for stream, record in records.items():
            layout = record.activation.layout
            own = [w for w in layout.waits if w.stream == stream]
            planned = [i for i in layout.plan.instructions if isinstance(i, Wait)]
            assert len(own) == sum(i.stream == stream for i in planned)
            assert record.waits.shape == (len(own), 2)
            for wait, (begin, end) in zip(own, record.waits.tolist(), strict=True):
                assert begin <= end
                if wait.source_row >= 0:
                    assert records[wait.source].times[wait.source_row, 1] <= end
                if wait.row < len(record.times):
                    assert end <= record.times[wait.row, 0]
                if wait.row > 0:
                    assert record.times[wait.row - 1, 1] <= begin
                waited += 1
    assert waited


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_host_hands_over_every_row_once(way):
    notes = recorded(branching(2, 8), given(), steps=2, **way)
    assert len(notes.hosts) == 2
    for host in notes.hosts:
        layout = host.activation.layout
        assert len(host.launches) == len(layout.launches)
        assert len(host.syncs) == len(layout.syncs)
        assert bool(layout.syncs) == (layout.plan.policy.sync == "op")
        for times in (host.launches, host.syncs):
            assert (times[:, 0] > 0).all()
            assert (times[:, 0] <= times[:, 1]).all()
        records = {r.stream: r for r in notes.streams if r.activation == host.activation}
        for stream, rows in enumerate(layout.rows):
            handed = [launch for launch in layout.launches if launch.stream == stream]
            assert [r for x in handed for r in range(x.lo, x.hi)] == list(range(len(rows)))
        for launch, (begin, _) in zip(layout.launches, host.launches.tolist(), strict=True):
            for row in range(launch.lo, launch.hi):
                assert begin <= records[launch.stream].times[row, 0]


# --- statistics -----------------------------------------------------------------------------------


def values_of(text: str, inputs: dict) -> dict[str, np.ndarray]:
    values = Values()
    opstep.loads(text).run("main", inputs, mode="debug", listeners=[values])
    return values.found


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_statistics_are_those_of_the_values(way):
    """Although buffers are reused, and ops take over those of their operands."""
    text, inputs = branching(3, 8), given()
    notes, values = recorded(text, inputs, steps=2, **way), values_of(text, inputs)
    filled = notes.plans[0].policy.fill == "nan"
    found = notes.statistics()
    assert len(found) == 2 * len(values)
    for (_, _, name), stats in found.items():
        assert stats == statistics_of(values[name], filled=filled)
        assert stats.mean == pytest.approx(values[name].mean(dtype=np.float64), abs=1e-12)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_statistics_of_every_dtype_on_the_way(way):
    inputs = {"x": np.random.default_rng(1).normal(0, 100, (40, 900)).astype(np.float32)}
    notes, values = recorded(DTYPES, inputs, **way), values_of(DTYPES, inputs)
    filled = notes.plans[0].policy.fill == "nan"
    found = {name: stats for (_, _, name), stats in notes.statistics().items()}
    assert found == {name: statistics_of(a, filled=filled) for name, a in values.items()}
    assert found["root"].nan == (inputs["x"] < 0).sum()
    assert found["root"].unwritten == (0 if filled else None)
    assert found["whole"].unwritten is None


def test_only_what_is_wanted_is_taken():
    chosen = {"b0_3", "b1_1", "view"}
    notes = recorded(branching(2, 6), given(), Notes(lambda step, name: name in chosen))
    assert {name for _, _, name in notes.statistics()} == chosen
    nothing = recorded(branching(2, 6), given(), Notes(lambda step, name: False))
    assert nothing.statistics() == {}
    assert sum(len(r.times) for r in nothing.streams) == sum(len(r.times) for r in notes.streams)


def test_steps_without_statistics():
    notes = recorded(branching(2, 6), given(), Notes(every=3), steps=7)
    with_stats = {r.activation.step for r in notes.streams if r.stats is not None}
    without = {r.activation.step for r in notes.streams if r.stats is None}
    assert (with_stats, without) == ({0, 3, 6}, {1, 2, 4, 5})
    found = notes.statistics()
    for _, _, name in found:
        assert len({str(s) for (_, _, n), s in found.items() if n == name}) == 1


def test_tensors_of_no_elements():
    notes = recorded(
        "graph main(x: f32[N]) -> f32[N] {\n  y = add(x, 1.0)\n  return y\n}\n",
        {"x": np.zeros(0, np.float32)},
    )
    ((_, stats),) = notes.statistics().items()
    assert (stats.count, stats.mean, stats.min) == (0, None, None)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_overwrites_nothing_has_a_row(way):
    """Ops that take over their operands' memory, too."""
    text = """
graph main(x: f32[N], i: i64[0]) -> f32[N] {
  a = neg(x)
  b = index_put_add(a, 1.0, i)
  c = index_put(b, 1.0, i)
  return c
}
"""
    inputs = {"x": np.arange(3, dtype=np.float32), "i": np.zeros(0, np.int64)}
    notes, values = recorded(text, inputs, **way), values_of(text, inputs)
    (layout,) = {id(r.activation.layout): r.activation.layout for r in notes.streams}.values()
    assert [step for rows in layout.rows for step in rows] == [0, 1, 2]
    filled = notes.plans[0].policy.fill == "nan"
    for (_, _, name), stats in notes.statistics().items():
        assert stats == statistics_of(values[name], filled=filled)


# --- control flow ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_turn_of_a_loop_is_an_activation(way):
    inputs = {"x": np.array([1.0, -3.0, 5.0], np.float32)}  # doubled 10: 4 turns down to 0.625
    notes = recorded(LOOP, inputs, steps=2, **way)
    activations = [h.activation for h in notes.hosts]
    assert len({a.number for a in activations}) == len(activations) == 2 * (1 + 5 + 4)
    for step in range(2):
        of_step = [a for a in activations if a.step == step]
        (main,) = (a for a in of_step if a.plan.graph == "main")
        assert (main.caller, main.call, main.turn) == (None, -1, 0)
        called = main.plan.steps[main.layout.calls[0]]
        assert called.op.name == "while"
        for graph, turns in (("large", 5), ("halve", 4)):
            turned = [a for a in of_step if a.plan.graph == graph]
            assert [a.turn for a in turned] == list(range(turns))
            assert all(a.caller == main and a.call == main.layout.calls[0] for a in turned)
        numbers = {a.number: a for a in of_step}
        found = notes.statistics()
        tops = [s.max for (_, n, name), s in found.items() if n in numbers and name == "top"]
        lows = [s.min for (_, n, name), s in found.items() if n in numbers and name == "less"]
        assert tops == [10, 5, 2.5, 1.25, 0.625]
        assert lows == [-3, -1.5, -0.75, -0.375]
        assert found[step, main.number, "total"].mean == pytest.approx(1.5 * 2 / 2**4 * 2)


def test_calls_last_as_long_as_what_they_call():
    notes = recorded(LOOP, {"x": np.ones(3, np.float32)})
    (main,) = (h for h in notes.hosts if h.activation.plan.graph == "main")
    ((begin, end),) = main.calls.tolist()
    inner = [r for r in notes.streams if r.activation.caller is not None]
    assert all(begin <= r.times.min() and r.times[:, 0].max() <= end for r in inner)


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("text", [branching(3, 8), LOOP, DTYPES], ids=["branches", "loop", "types"])
def test_results_are_the_same_with_and_without(text, way):
    shape = (8, SIZE // 8) if text == DTYPES else SIZE
    inputs = given(shape)
    plain = opstep.loads(text).run("main", inputs, **way)
    notes = Notes()
    result = opstep.loads(text).run("main", inputs, recording=notes, steps=2, **way)
    for name, array in zip(plain.names, plain.outputs, strict=True):
        assert result[name].tobytes() == array.tobytes()
        assert notes.steps[-1][0][name].tobytes() == array.tobytes()
    assert notes.ends == [None]


def test_a_step_ends_when_all_its_records_were_taken():
    notes = recorded(branching(3, 8), given(), steps=4, streams=3)
    taken = [n for _, n in notes.steps]
    for step, n in enumerate(taken):
        assert {r.activation.step for r in notes.records[:n]} == set(range(step + 1))
    assert taken[-1] == len(notes.records)


def test_many_steps_and_runs_share_their_memory():
    program, notes = opstep.loads(branching(2, 6)), Notes()
    for _ in range(3):
        program.run("main", given(), recording=notes, steps=10)
        notes.ends.clear()
    assert len({id(r.activation.layout) for r in notes.streams}) == 1
    assert len({r.activation.number for r in notes.streams}) == 30
    assert len(notes.plans) == 1
    first, last = notes.streams[0], notes.streams[-1]
    assert not np.shares_memory(first.times, last.times)  # what was taken stays as it was
    assert first.times.max() < last.times.min()


def test_runs_in_an_event_loop():
    program, inputs = opstep.loads(branching(3, 8)), given()
    plain = program.run("main", inputs)
    notes = [Notes(), Notes()]

    async def both():
        runs = (program.run_async("main", inputs, recording=n, steps=3, streams=3) for n in notes)
        return await asyncio.gather(*runs)

    for result, taken in zip(asyncio.run(both()), notes, strict=True):
        assert result["view"].tobytes() == plain["view"].tobytes()
        assert len(taken.steps) == 3
        assert len(taken.hosts) == 3
        assert taken.ends == [None]
        view = [s for (_, _, name), s in taken.statistics().items() if name == "view"]
        assert view == [statistics_of(plain["view"])] * 3


ASSERTS = """
graph main(x: f32[N]) -> f32[N] {
  top = max(x)
  fine = less(top, 10.0)
  assert fine, "too large"
  y = exp(x)
  return y
}
"""


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_failed_assert_is_told(way):
    program, notes = opstep.loads(ASSERTS), Notes()
    with pytest.raises(OpstepError, match="too large"):
        program.run("main", {"x": np.array([20, 1], np.float32)}, recording=notes, **way)
    assert len(notes.steps) == 1  # told as one that failed
    assert len(notes.ends) == 1
    assert "too large" in str(notes.ends[0])
    top = [s.max for (_, _, name), s in notes.statistics().items() if name == "top"]
    assert top == [20]  # the run went to its end, and what it did was taken
    again = Notes()
    program.run("main", {"x": np.array([2, 1], np.float32)}, recording=again, **way)
    assert again.ends == [None]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_error_on_the_way_ends_the_records(way):
    text = LOOP.replace("body=halve", "body=halve, limit=2")
    program, notes = opstep.loads(text), Notes()
    with pytest.raises(OpstepError, match="not ended after 2 turns"):
        program.run("main", {"x": np.ones(3, np.float32) * 100}, recording=notes, **way)
    assert len(notes.ends) == 1
    assert isinstance(notes.ends[0], OpstepError)
    assert notes.steps == []
    assert {h.activation.plan.graph for h in notes.hosts} == {"large", "halve"}
    program.run("main", {"x": np.ones(3, np.float32)}, recording=Notes(), **way)


def test_what_a_recorder_raises_ends_the_run():
    class Broken(Notes):
        def add_record(self, record):
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        recorded(branching(2, 6), given(), Broken())


def test_the_null_device_has_nothing_to_record():
    with pytest.raises(InputError, match="computes nothing"):
        recorded(branching(2, 6), given(), device="null")
