"""The file of a timeline: what is in it at any moment, where it is cut, what it may replace; and
records of any figures, read back by the engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import given as sampled
from hypothesis import settings
from hypothesis import strategies as st
from timelines import Seen

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.runtime.recording import (
    Activation,
    HostRecord,
    Launch,
    Layout,
    RunInfo,
    StreamRecord,
    Wait,
)
from opstep.trace.sink import Run, RunEnd, StepDone
from opstep.trace.timeline import TimelineSink

TEXT = """
graph main(x: f32[N]) -> f32[N], f32[N] {
  a = tanh(x)
  b = exp(x)
  c = add(a, b)
  d = mul(c, a)
  return c, d
}
"""
X = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}
PAIRS = np.zeros((0, 2), np.int64)


def run_of(program: opstep.Program, key: str, policy=None) -> Run:
    info = RunInfo(program, "main", {}, policy or opstep.policy(streams=2), "cpu", None, 0, 1)
    return Run(key, info, time.time(), time.monotonic_ns(), "none", 1, {}, {})


def layout_of(program: opstep.Program) -> Layout:
    """a and d on stream 0, b and c on stream 1, which wait for each other."""
    plan = program.plan(symbols={"N": 8}, policy=opstep.policy(streams=2))
    launches = [Launch(0, 0, 1), Launch(1, 0, 1), Launch(1, 1, 2), Launch(0, 1, 2)]
    waits = [Wait(1, 1, 0, 0), Wait(0, 1, 1, 1)]
    return Layout(plan, [[0, 3], [1, 2]], [[], []], launches, waits)


# --- any figures ----------------------------------------------------------------------------------

gaps = st.one_of(st.just(0), st.integers(0, 100), st.integers(0, 2**50))
# Of one record: op, wait, op on each stream (six moments each), four launches.
records = st.lists(st.lists(gaps, min_size=8, max_size=8), min_size=3, max_size=3)


def moments(steps: list[int], start: int) -> np.ndarray:
    """Times that never fall; i64[n, 2], n // 2 pairs."""
    return (np.cumsum(steps) + start).astype(np.int64).reshape(-1, 2)


def test_records_of_any_figures_are_read_back(tmp_path):
    """Each example is a run of one file, which is read once."""
    program = opstep.loads(TEXT)
    layout = layout_of(program)
    sink = TimelineSink(tmp_path / "t.pftrace")
    expected: Counter = Counter()
    numbers = iter(range(1_000_000))

    @settings(max_examples=60, deadline=None)
    @sampled(
        turns=st.lists(records, min_size=1, max_size=3),
        start=st.integers(1, 2**40),
        flush=st.booleans(),
    )
    def write(turns, start, flush):
        key = f"{next(numbers):08x}"
        run = run_of(program, key)
        sink.begin_run(run)
        now = start
        for number, (host, *streams) in enumerate(turns):
            activation = Activation(next(numbers), number, layout)
            launches = moments(host, now)
            sink.add_record(run, HostRecord(activation, launches, PAIRS, PAIRS))
            expected.update((key, "launch", *pair) for pair in launches.tolist())
            end = int(launches[-1, 1])
            for stream, steps in enumerate(streams):
                first, wait, second, _ = moments(steps, now)
                times, waits = np.array([first, second]), wait[None]
                sink.add_record(run, StreamRecord(activation, stream, times, waits, None))
                expected.update((key, f"{stream}", *pair) for pair in times.tolist())
                expected.update((key, f"{stream} waits", *pair) for pair in waits.tolist())
                end = max(end, int(second[1]))
            sink.end_step(run, StepDone(number, now - 1, end + 1, {"loss": float("nan")}))
            expected[key, "step", now - 1, end + 1] += 1
            now = end + 2
        sink.end_run(run, RunEnd(now, len(turns), None, [], {}, {}))
        if flush:
            sink.flush()

    write()
    written = sink.close()
    seen = Seen(tmp_path / "t.pftrace")
    found: Counter = Counter()
    for s in seen.slices.values():
        stream = s.track[-1].removeprefix("stream ")
        kind = {"op": stream, "wait": f"{stream} waits"}.get(s.category, s.category)
        found[s.args["run"], kind, s.ts, s.ts + s.dur] += 1
        assert (s.parent is None) == (s.category != "launch")
    assert found == expected
    assert dict(written.counts)["slice"] == found.total()


# --- what is in the file when ---------------------------------------------------------------------


def test_a_step_is_in_the_file_when_it_has_been_flushed(tmp_path):
    path, copy = tmp_path / "t.pftrace", tmp_path / "copy.pftrace"
    program = opstep.loads(TEXT)
    with opstep.Recording(trace=path) as made:
        for _ in range(3):
            program.run("main", X, recording=made)
        made.barrier()
        copy.write_bytes(path.read_bytes())
        program.run("main", X, recording=made)
    assert [s.name for s in Seen(copy).of("step")] == ["step 0", "step 1", "step 2"]
    assert path.read_bytes().startswith(copy.read_bytes())


def test_a_file_that_is_cut_anywhere_holds_whole_slices(tmp_path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    path, cut = tmp_path / "t.pftrace", tmp_path / "cut.pftrace"
    program = opstep.loads(TEXT)
    with opstep.Recording(trace=path) as made:
        for _ in range(5):
            program.run("main", X, recording=made)
            made.barrier()
    data = path.read_bytes()
    ends = np.cumsum([pb.Trace(packet=[p]).ByteSize() for p in pb.Trace.FromString(data).packet])
    assert ends[-1] == len(data)
    whole = Counter(s.brief for s in Seen(path).slices.values())
    middle, last = (int(e) for e in (ends[len(ends) // 2], ends[-2]))
    random = Random(0)
    places = [
        middle,
        last,
        len(data) - 1,
        *(random.randrange(int(ends[2]), last) for _ in range(3)),
    ]
    counts = {}
    for place in places:
        cut.write_bytes(data[:place])
        found = Counter(s.brief for s in Seen(cut).slices.values())
        assert found <= whole
        counts[place] = found.total()
    assert sorted(counts.values()) == [n for _, n in sorted(counts.items())]
    assert 0 < counts[middle] < counts[last] == counts[len(data) - 1] < whole.total()


def test_what_is_flushed_is_appended_as_whole_packets(tmp_path, monkeypatch):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    written = []
    write = os.write
    monkeypatch.setattr(
        os, "write", lambda fd, data: written.append(bytes(data)) or write(fd, data)
    )
    with opstep.Recording(trace=tmp_path / "t.pftrace") as made:
        opstep.loads(TEXT).run("main", X, recording=made, steps=50)
    monkeypatch.undo()
    ours = [data for data in written if data[:1] == b"\n"]
    assert len(ours) >= 2
    for data in ours:
        assert pb.Trace.FromString(data).ByteSize() == len(data)
    assert b"".join(ours) == (tmp_path / "t.pftrace").read_bytes()


def test_a_write_that_fails_leaves_whole_packets(tmp_path, monkeypatch):
    path = tmp_path / "t.pftrace"
    program = opstep.loads(TEXT)
    run, layout = run_of(program, "00000001"), layout_of(program)
    sink = TimelineSink(path)
    sink.begin_run(run)
    sink.end_step(run, StepDone(0, 100, 200, {}))
    sink.flush()
    before = path.read_bytes()
    sink.add_record(run, HostRecord(Activation(0, 1, layout), moments([300] * 8, 0), PAIRS, PAIRS))
    write = os.write

    calls = []

    def full(fd, data):
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        sink.flush()
    written = sink.close()
    assert path.read_bytes() == before
    assert written.nbytes == len(before)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_does_not_stop_the_run():
    program = opstep.loads(TEXT)
    bare = program.run("main", X)
    with opstep.Recording(trace="/dev/full") as made:
        result = program.run("main", X, recording=made, steps=3)
    (written,) = made.close()
    assert written.problem.startswith("No space left on device: no room is left on its disk")
    assert result.outputs[1].tobytes() == bare.outputs[1].tobytes()


# --- what it may replace --------------------------------------------------------------------------


def test_a_trace_is_replaced_when_a_run_begins(tmp_path):
    path = tmp_path / "t.pftrace"
    program = opstep.loads(TEXT)
    with opstep.Recording(trace=path) as made:
        program.run("main", X, recording=made, steps=5)
    old = path.read_bytes()
    with opstep.Recording(trace=path):
        pass
    assert path.read_bytes() == old
    with opstep.Recording(trace=path) as made:
        program.run("main", X, recording=made)
    assert [s.name for s in Seen(path).of("step")] == ["step 0"]


def test_a_recording_of_no_run_leaves_no_file(tmp_path):
    with opstep.Recording(trace=tmp_path / "t.pftrace"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [TEXT.encode(), b"\n" + TEXT.encode(), b"\n\n", b"\n", b"SQLite format 3\0", b"\0" * 9],
)
def test_what_is_no_trace_is_not_replaced(tmp_path, content):
    path = tmp_path / "mine.opg"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a trace: it is not replaced"):
        opstep.Recording(trace=path)
    assert path.read_bytes() == content


def test_two_recordings_do_not_write_one_file(tmp_path):
    path = tmp_path / "t.pftrace"
    program = opstep.loads(TEXT)
    with opstep.Recording(trace=path) as made:
        program.run("main", X, recording=made)
        with pytest.raises(InputError, match="another recording is writing it"):
            opstep.Recording(trace=path)
    assert [s.name for s in Seen(path).of("step")] == ["step 0"]
    opstep.Recording(trace=path).close()


def test_an_interrupt_is_no_failure(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    program = opstep.loads(TEXT)
    with opstep.Recording(trace=tmp_path / "t.pftrace") as made, suppress(KeyboardInterrupt):
        program.run("main", X, recording=made, steps=5, on_step=interrupt)
    seen = Seen(tmp_path / "t.pftrace")
    assert [s.name for s in seen.of("step") + seen.of("error")] == ["step 0", "interrupted"]


def test_an_empty_file_is_filled(tmp_path):
    path = tmp_path / "t.pftrace"
    path.touch()
    with opstep.Recording(trace=path) as made:
        opstep.loads(TEXT).run("main", X, recording=made)
    assert len(Seen(path).of("op")) == 4


@pytest.mark.parametrize("where", [".", "missing/t.pftrace", "file/t.pftrace"])
def test_places_that_cannot_be_written(tmp_path, where):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="give a file in a folder"):
        opstep.Recording(trace=tmp_path / where)


def test_names_may_hold_bytes_that_are_no_text(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    os.mkdir(folder)
    source = os.path.join(folder, "ä\udce9.opg")
    with open(source, "w", encoding="utf-8") as file:
        file.write(TEXT)
    path = os.path.join(folder, "t.pftrace")
    with opstep.Recording(trace=path) as made:
        opstep.load(source).run("main", X, recording=made)
    plain = tmp_path / "t.pftrace"
    os.rename(path, plain)
    (name,) = {s.args["file"] for s in Seen(plain).of("op")}
    assert name.endswith("�.opg") and "ä" in name


def test_answers_of_any_length_are_whole(tmp_path):
    """The engine hands long ones over in pieces, cut anywhere."""
    from opstep.trace.viewer.engine import Engine

    with opstep.Recording(trace=tmp_path / "t.pftrace") as made:
        opstep.loads(TEXT).run("main", X, recording=made)
    numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < {})"
    with Engine(tmp_path / "t.pftrace") as engine:
        for length in (10, 5_000, 100_000):
            sql = numbers.format(length) + " select i * 123456789012 from n"
            assert engine.query(sql).rows == [(i * 123456789012,) for i in range(1, length + 1)]
            sql = numbers.format(length) + " select printf('%0' || (i % 99) || 'd', i) from n"
            assert engine.query(sql).rows == [(f"{i:0{i % 99}d}",) for i in range(1, length + 1)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_told_where_nobody_closes_the_recording():
    text = (
        "import opstep\n"
        "program = opstep.loads('graph main(x: f32[2]) -> f32[2] {\\n  return x\\n}')\n"
        "made = opstep.Recording(trace='/dev/full')\n"
        "program.run('main', {'x': [1.0, 2.0]}, recording=made)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert "/dev/full is incomplete: No space left on device" in done.stderr
