"""The summary of a timeline: figures that are known beforehand, and those of real runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import made_timelines
import numpy as np
import pytest
from timelines import recording

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.runtime.recording import live_bytes
from opstep.trace.describe import describe
from opstep.trace.viewer.engine import Engine
from opstep.trace.viewer.summary import prepare, summarize

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "made.pftrace"
    made_timelines.two_streams(path)
    with Engine(path) as engine:
        prepare(engine)
        yield engine


@pytest.fixture
def made(engine, monkeypatch):
    """`summarize` on the made timeline, whose tables are there."""
    monkeypatch.setattr("opstep.trace.viewer.summary.prepare", lambda engine: None)
    return lambda *args, **kwargs: summarize(engine, *args, **kwargs)


def test_streams_are_busy_wait_and_have_gaps(made):
    (run,) = made("aa11")
    assert (run.run, run.graph, run.device, run.steps) == ("aa112233", "main", "cpu", 3)
    assert run.window_ns == 6000  # 1000 + 3000 + 2000
    first, second = run.streams
    assert (first.stream, first.ops, first.busy_ns, first.waiting_ns) == (
        "stream 0", 9, 6 * 400, 6 * 320,
    )  # fmt: skip
    assert (first.gaps, first.gaps_ns, first.longest_gap_ns) == (6, 6 * 10, 3 * 5)
    assert (first.idle_ns, first.utilisation) == (6 * 280, 0.4)
    assert (second.stream, second.ops, second.busy_ns, second.waiting_ns) == (
        "stream 1", 3, 6 * 500, 0,
    )  # fmt: skip
    assert (second.gaps, second.gaps_ns, second.idle_ns, second.utilisation) == (0, 0, 3000, 0.5)


def test_overlap_is_what_two_streams_were_busy(made):
    (run,) = made("aa11")
    assert run.busy_by_streams == {1: 6 * 540, 2: 6 * 180}
    assert (run.busy_ns, run.overlap_ns) == (6 * 720, 6 * 180)


def test_the_path_goes_through_waits_of_the_median_step(made):
    (run,) = made("aa11")
    path = run.critical
    assert (path.step, path.length_ns, path.ops_ns) == (2, 2 * 755, 2 * 700)
    told = [(op.op, op.line, op.stream, op.dur_ns, op.before_ns, op.after) for op in path.ops]
    assert told == [
        ("b = abs", 3, "stream 1", 1000, 2 * 45, "launch"),
        ("c = add", 4, "stream 0", 200, 2 * 10, "wait"),
        ("d = relu", 5, "stream 0", 200, 0, "stream"),
    ]
    assert {op.site for op in path.ops} == {"main/b", "main/c", "main/d"}
    assert sum(op.dur_ns + op.before_ns for op in path.ops) == path.length_ns


def test_the_path_goes_through_what_the_host_waited_for(made):
    (run,) = made("aabb")
    told = [(op.op, op.dur_ns, op.before_ns, op.after) for op in run.critical.ops]
    assert told == [("a = exp", 200, 25, "launch"), ("b = abs", 40, 35, "launch")]
    assert run.critical.length_ns == 300


def test_ops_are_told_by_what_they_took(made):
    (run,) = made("aa11", most=3)
    assert [(op.op, op.site, op.line, op.count, op.total_ns) for op in run.ops] == [
        ("b = abs", "main/b", 3, 3, 3000),
        ("a = exp", "main/a", 2, 3, 1200),
        ("c = add", "main/c", 4, 3, 600),
    ]
    assert [op.mean_ns for op in run.ops] == [1000, 400, 200]
    assert [op.share for op in run.ops] == pytest.approx([3000 / 5400, 1200 / 5400, 600 / 5400])
    assert run.distinct_ops == 4
    assert {op.file for op in run.ops} == {made_timelines.FILE}


def test_memory_is_told_with_the_op_that_ran(made):
    (run,) = made("aa11")
    live = live_bytes(made_timelines.plan())
    assert run.memory.peak_bytes == max(live[step] for step in range(4))
    names = ["a = exp", "b = abs", "c = add", "d = relu"]
    assert live[names.index(run.memory.op)] == run.memory.peak_bytes


def test_one_step_can_be_chosen(made):
    (run,) = made("aa11", 1)
    assert (run.step, run.steps, run.window_ns) == (1, 1, 3000)
    assert [s.busy_ns for s in run.streams] == [1200, 1500]
    assert run.critical.step == 1
    assert run.overlap_ns == 3 * 180


def test_runs_stand_in_the_order_of_time(made):
    assert [run.run for run in made()] == ["aa112233", "aabbccdd"]
    assert [run.run for run in made(step=2)] == ["aa112233"]  # the other has one step


@pytest.mark.parametrize(
    "run, step, message",
    [
        ("ff", None, "no run ff"),
        ("aa", None, "several runs with aa"),
        ("aabb", 1, "there is no step 1"),
        (None, 9, "there is no step 9"),
    ],
)
def test_what_is_not_there_is_said(made, run, step, message):
    with pytest.raises(InputError, match=message) as caught:
        made(run, step)
    assert caught.value.diagnostics[0].hint


# --- real runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A run of two streams: what was recorded, and the summary of its timeline."""
    path = tmp_path_factory.mktemp("real") / "t.pftrace"
    program = opstep.load(EXAMPLES / "branches.opg")
    inputs = {
        "left": np.ones((512, 32), np.float32),
        "right": np.ones((512, 48), np.float32),
        "bias": np.float32(1),
    }
    with pytest.MonkeyPatch.context() as patch, recording(patch, path) as (made, told):
        program.run("main", inputs, steps=5, streams=2, recording=made)
    with Engine(path) as engine:
        (run,) = summarize(engine, most=100)
    return told, run


def intervals(told) -> dict[int, list[tuple[int, int]]]:
    found = defaultdict(list)
    for _, record in told.streams:
        found[record.stream] += [(a, b) for a, b in record.times.tolist()]
    return found


def test_a_real_run_has_the_times_that_were_recorded(real):
    told, run = real
    waits = Counter()
    for _, record in told.streams:
        waits[f"stream {record.stream}"] += int((record.waits[:, 1] - record.waits[:, 0]).sum())
    assert len(run.streams) == 2
    for stream, pairs in intervals(told).items():
        (seen,) = [s for s in run.streams if s.stream == f"stream {stream}"]
        assert (seen.ops, seen.busy_ns) == (len(pairs), sum(b - a for a, b in pairs))
        assert seen.waiting_ns == waits[seen.stream]
    assert run.steps == 5
    assert run.window_ns == sum(step.ended_ns - step.began_ns for _, step in told.steps)


def test_a_real_run_overlaps_as_its_intervals_do(real):
    told, run = real
    pairs = [pair for pairs in intervals(told).values() for pair in pairs]
    edges = np.unique(pairs)
    begins, ends = np.array(pairs).T
    middle = (edges[:-1] + edges[1:]) / 2
    level = ((begins <= middle[:, None]) & (middle[:, None] < ends)).sum(1)
    expected = {int(k): int(np.diff(edges)[level == k].sum()) for k in np.unique(level) if k}
    assert run.busy_by_streams == expected


def test_a_real_run_has_its_ops(real):
    told, run = real
    expected = Counter()
    for _, record, row, step in told.ops():
        begin, end = record.times[row].tolist()
        expected[describe(record.activation.plan, record.activation.plan.steps[step]).site] += (
            end - begin
        )
    assert {op.site: op.total_ns for op in run.ops} == expected
    assert {op.count for op in run.ops} == {5}
    assert sum(op.share for op in run.ops) == pytest.approx(1)


def test_a_real_path_fills_its_step_without_overlap(real):
    told, run = real
    path = run.critical
    (done,) = [step for _, step in told.steps if step.step == path.step]
    last = max(
        int(record.times[:, 1].max())
        for _, record in told.streams
        if record.activation.step == path.step and len(record.times)
    )
    assert path.length_ns == last - done.began_ns
    assert path.ops_ns == sum(op.dur_ns for op in path.ops) <= path.length_ns
    assert sum(op.dur_ns + op.before_ns for op in path.ops) == path.length_ns
    assert path.ops[0].after in ("launch", "begin")


def test_a_path_goes_through_the_turns_of_a_loop(tmp_path):
    program = opstep.load(EXAMPLES / "while.opg")
    path = tmp_path / "t.pftrace"
    with opstep.Recording(trace=path) as made:
        program.run("main", {"x": np.float32([2, 3, 5, 7])}, recording=made)
    with Engine(path) as engine:
        (run,) = summarize(engine, most=100)
        turns = engine.query("select count(*) from slice where category = 'turn'").rows[0][0]
    through = Counter(op.site.split("/")[0] for op in run.critical.ops)
    assert turns > 3  # the test decides whether the body runs, and after it what comes
    assert through["far_off"] > turns // 2 and through["improve"] >= turns // 2
    told = sum(op.dur_ns + op.before_ns for op in run.critical.ops)
    assert told == run.critical.length_ns


def test_a_run_that_failed_says_so(tmp_path):
    program = opstep.loads("""\
        graph main(x: f32[N]) -> f32[N] {
          a = exp(x)
          m = max(a)
          fine = less(m, 0.5)
          assert fine, "too large"
          b = relu(a)
          return b
        }
    """)
    path = tmp_path / "t.pftrace"
    with opstep.Recording(trace=path) as made, pytest.raises(opstep.OpstepError, match="too large"):
        program.run("main", {"x": np.ones(4, np.float32)}, recording=made)
    with Engine(path) as engine:
        (run,) = summarize(engine)
    assert "too large" in run.error
    assert run.window_ns > 0 and run.steps == 1
