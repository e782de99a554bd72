"""What a workspace holds of a run, compared with what the run did."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workspaces import HALVING, ROOTS, TRAIN, record, train_inputs, train_program

import opstep
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.statistics import LOWEST
from opstep.trace.workspace import sink

TYPES = """\
graph main(x: f32[N], k: i64[N]) -> f64[N], f16[N], bf16[N], i64[N], i8[N], bool[N] {
  wide = cast(x, dtype=f64)
  half = cast(x, dtype=f16)
  brain = cast(x, dtype=bf16)
  large = mul(k, 3)
  small = cast(k, dtype=i8)
  positive = greater(x, 0.0)
  return wide, half, brain, large, small, positive
}
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "runs.db"


def ask(path: Path, sql: str, *given) -> list[tuple]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql, given).fetchall()
    finally:
        connection.close()


def one(path: Path, sql: str, *given):
    ((value,),) = ask(path, sql, *given)
    return value


def figures(array: np.ndarray) -> dict:
    """The row of `stats` that NumPy gives for an array."""
    x = array.astype(np.float64)
    finite = x[np.isfinite(x)]
    used = finite[finite != 0]
    bins = np.clip(np.floor(np.log2(np.abs(used))).astype(int), LOWEST, LOWEST + 63)
    lowest, histogram = None, None
    if used.size:
        lowest = int(bins.min())
        histogram = np.bincount(bins - lowest).tolist()
    exact = array.dtype.kind in "iub"
    ends = (array if exact else finite).astype(object if exact else np.float64)
    there = finite.size > 0
    kind = int if exact else float
    return {
        "count": x.size,
        "min": kind(ends.min()) if there else None,
        "max": kind(ends.max()) if there else None,
        "mean": float(finite.mean()) if there else None,
        "std": float(finite.std()) if there else None,
        "l2": float(np.sqrt((finite**2).sum())) if there else None,
        "absmax": kind(max(abs(ends.min()), abs(ends.max()))) if there else None,
        "nan": int(np.isnan(x).sum()),
        "posinf": int(np.isposinf(x).sum()),
        "neginf": int(np.isneginf(x).sum()),
        "zero": int((finite == 0).sum()),
        "lowest": lowest,
        "histogram": histogram,
    }


floats = st.floats(width=32, allow_subnormal=False)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(floats, st.integers(-(2**60), 2**60)), min_size=1, max_size=40))
def test_statistics_are_those_that_numpy_finds(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("ws") / "runs.db"
    x, k = np.array([a for a, _ in pairs], np.float32), np.array([b for _, b in pairs], np.int64)
    program = opstep.loads(TYPES)
    with opstep.Recording(workspace=path) as recording:
        result = program.run("main", {"x": x, "k": k}, recording=recording)
    names = ", ".join(f'"{name}"' for name in figures(x))
    sql = f"select {names} from stats join results using (run, op, result) where name = ?"
    for name in ("wide", "half", "brain", "large", "small", "positive", "x", "k"):
        array = {"x": x, "k": k}[name] if name in "xk" else result[name]
        rows = ask(path, sql, name)
        assert rows and set(rows) == {rows[0]}  # of inputs, as the run and as its step found them
        for (what, wanted), found in zip(figures(array).items(), rows[0], strict=True):
            if what == "histogram":
                found = found and json.loads(found)
            if what in ("mean", "std", "l2") and wanted is not None:
                scale = max(1e-300, float(np.abs(array.astype(np.float64)).max(
                    initial=0, where=np.isfinite(array.astype(np.float64)))))  # fmt: skip
                assert math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9 * scale), what
            else:
                assert found == wanted and isinstance(found, type(wanted)), (name, what)


EMPTY = """\
graph main(x: f32[N]) -> f32[N], f32[] {
  y = relu(x)
  t = sum(y)
  return y, t
}
"""


def test_tensors_of_no_elements_have_their_rows(path):
    with opstep.Recording(workspace=path) as recording:
        x = np.zeros(0, np.float32)
        opstep.loads(EMPTY).run("main", {"x": x}, recording=recording, steps=2)
    sql = "select value, step, count, mean from stat_history where op >= 0 order by op, step"
    found = ask(path, sql)
    assert found == [("y", 0, 0, None), ("y", 1, 0, None), ("t", 0, 1, 0.0), ("t", 1, 1, 0.0)]


def test_a_run_is_described_as_it_was(path):
    program = train_program()
    key = record(path, program, stats="relu:*", stats_every=2, steps=3, seed=7, streams=2)
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    run = connection.execute("select * from runs").fetchone()
    connection.close()
    assert (run["key"], run["status"], run["steps"]) == (key, "done", 3)
    assert (run["program"], run["file"], run["graph"]) == (TRAIN, "train.opg", "main")
    assert (run["seed"], run["streams"], run["device"]) == (7, 2, "cpu")
    assert (run["selection"], run["every"], run["error"]) == ("relu:*", 2, None)
    assert run["param_bytes"] == 4 * (6 + 3 + 1) and run["arena_bytes"] > 0
    assert run["ended"] >= run["began"] and run["seconds"] > 0
    assert ask(path, "select step from stats") == [(0,), (2,)]
    last = one(path, "select max(end_ns) from steps")
    assert run["began_ns"] < last <= run["began_ns"] + run["seconds"] * 1e9 + 1


def test_ops_refer_to_the_text_and_to_who_gave_their_operands(path):
    record(path)
    found = {
        site: (name, line, statement, json.loads(sources))
        for site, name, line, statement, sources in ask(
            path, "select site, name, line, statement, sources from ops where op >= 0"
        )
    }
    number = dict(ask(path, "select site, op from ops"))
    lines = TRAIN.splitlines()
    for name, line, statement, _ in found.values():
        assert lines[line - 1].strip() == statement
        assert name in statement or "<-" in statement
    assert found["main/y"][3] == [[number[s], 0] for s in ("input/x", "param/w", "param/bias")]
    assert found["main/d"][3] == [[number["main/r"], 0], [number["input/target"], 0]]
    assert found["main/scaled"][3] == [[number["param/bias"], 0], 0], "0: a number of the text"


def test_every_execution_lies_in_its_step_and_in_the_order_of_its_stream(path):
    record(path, steps=4, streams=2)
    for step, begin, end in ask(path, "select step, start_ns, end_ns from steps where step >= 0"):
        times = ask(
            path, "select start_ns, end_ns from executions where step = ? and op >= 0", step
        )
        assert times and all(begin <= a <= b <= end for a, b in times)
    for (stream,) in ask(path, "select distinct stream from executions where stream >= 0"):
        starts = ask(
            path,
            "select start_ns from executions where stream = ? and op >= 0 order by execution",
            stream,
        )
        assert starts == sorted(starts)
    sums = ask(
        path,
        "select o.executions = count(*), o.total_ns = sum(e.end_ns - e.start_ns), "
        "o.least_ns = min(e.end_ns - e.start_ns), o.most_ns = max(e.end_ns - e.start_ns) "
        "from ops as o join executions as e using (run, op) where op >= 0 group by op",
    )
    assert sums and set(sums) == {(1, 1, 1, 1)}


def test_turns_of_loops_are_executions_of_their_own(path):
    x = np.array([9.0, 1.5], np.float32)
    record(path, opstep.loads(HALVING), {"x": x}, steps=2)
    turns = ask(
        path,
        "select e.step, turn, max from executions as e join ops using (run, op) "
        "join stats using (run, execution) where name = 'mul' order by 1, 2",
    )
    assert turns == [(s, k, 9.0 / 2 ** (k + 1)) for s in (0, 1) for k in range(4)]
    loops = ask(path, "select step, e.stream, end_ns > start_ns from executions as e "
                      "join ops using (run, op) where name = 'while' order by step")  # fmt: skip
    assert loops == [(0, -1, 1), (1, -1, 1)]


def test_metrics_and_checkpoints(path):
    program, inputs = train_program(), train_inputs()
    bias = program.params["bias"].copy()
    with opstep.Recording(workspace=path) as recording:
        losses = [float(program.run("main", inputs, recording=recording)["loss"]) for _ in range(3)]
    assert [v for (v,) in ask(path, "select value from metrics where name = 'loss'")] == losses
    sql = (
        "select c.kind || ' ' || t.kind || ' ' || name, digest "
        "from tensors as t join checkpoints as c on c.id = checkpoint"
    )
    kept = dict(ask(path, sql))
    assert kept.keys() == {
        "start input x", "start input target", "start param bias",
        "end param bias", "end state count", "end output loss", "end output r",
    }  # fmt: skip
    blob = one(path, "select data from blobs where digest = ?", kept["start param bias"])
    assert blob == bias.tobytes()
    blob = one(path, "select data from blobs where digest = ?", kept["end param bias"])
    assert blob == (bias / 8).astype(np.float32).tobytes()


def test_equal_tensors_are_stored_once(path):
    for _ in range(3):
        record(path)
    assert one(path, "select count(*) from tensors where name = 'x'") == 3
    assert one(path, "select count(*) from blobs join tensors using (digest) "
                     "where name = 'x'") == 3  # fmt: skip
    assert one(path, "select count(distinct digest) from tensors where name = 'x'") == 1
    assert one(path, "select count(*) = count(distinct digest) from blobs") == 1


def test_what_is_wrong_is_found(path):
    x = np.array([3.0, 0.5, 2.0], np.float32)
    record(path, opstep.loads(ROOTS, "roots.opg"), {"x": x})
    kind, step, value, file, line, message = ask(
        path, "select kind, step, value, file, line, message from findings"
    )[0]
    assert (kind, step, value, file, line) == ("nan", 0, "root", "roots.opg", 3)
    assert message == "sqrt gives root: 1 of 3 elements are NaN; its operands were finite"


ATTENTION = """\
graph main(x: f32[2, 3], hidden: bool[2, 3]) -> f32[2, 3] {
  scores = where(hidden, -inf, x)
  moved = add(scores, 1.0)
  weights = softmax(moved, axis=1)
  return weights
}
"""
COMES_OUT = ATTENTION.replace("return weights", "return moved")
SUMMED = ATTENTION.replace("-> f32[2, 3] {", "-> f32[] {").replace(
    "return weights", "loss = sum(moved)\n  return loss"
)
BEHIND = ATTENTION.replace("return weights", "logs = log(weights)\n  return logs")
ADDED = """\
graph main(x: f32[2, 3], mask: f32[2, 3]) -> f32[2, 3] {
  scores = add(x, mask)
  weights = softmax(scores, axis=1)
  return weights
}
"""
LIMITED = """\
graph main(x: f32[2, 3]) -> f32[2, 3] {
  full = full(shape=[2, 3], value=inf)
  least = minimum(x, full)
  return least
}
"""
SOME = np.array([[True, False, False], [False, False, False]])
ALL = np.array([[True, True, True], [False, False, False]])
BELOW = np.where(SOME, np.float32(-np.inf), np.float32(0))


@pytest.mark.parametrize(
    "text, given, value",
    [
        (ATTENTION, {"hidden": SOME}, None),
        (ATTENTION, {"hidden": ALL}, "weights"),
        (COMES_OUT, {"hidden": SOME}, None),
        (SUMMED, {"hidden": SOME}, "loss"),
        (ADDED, {"mask": BELOW}, None),
        (ADDED, {"mask": -BELOW}, "mask"),
        (LIMITED, {}, None),
    ],
)
def test_infinities_that_the_program_writes_are_no_findings(path, text, given, value):
    """As a hunt has it."""
    inputs = {"x": np.ones((2, 3), np.float32), **given}
    record(path, opstep.loads(text, "mask.opg"), inputs)
    assert ask(path, "select value from findings") == ([(value,)] if value else [])
    assert opstep.hunt(opstep.loads(text), "main", inputs).found == (value is not None)


def test_what_has_finite_operands_is_a_finding_by_figures_alone(path):
    """A hunt sees in the elements that these zeros were made by the program's infinities."""
    inputs = {"x": np.ones((2, 3), np.float32), "hidden": SOME}
    record(path, opstep.loads(BEHIND, "mask.opg"), inputs)
    message = "log gives logs: 1 of 6 elements are infinite; its operands were finite"
    assert ask(path, "select message from findings") == [(message,)]
    assert not opstep.hunt(opstep.loads(BEHIND), "main", inputs).found


def test_a_failed_run_says_why_and_keeps_its_steps(path):
    text = (
        "state n: i32[] = 0\ngraph main(x: f32[]) -> f32[] {\n  m = add(n, 1)\n  n <- m\n"
        '  fine = less(m, 4)\n  assert fine, "too many"\n  y = exp(x)\n  return y\n}\n'
    )
    program = opstep.loads(text, "fails.opg")
    with opstep.Recording(workspace=path) as recording, pytest.raises(OpstepError):
        program.run("main", {"x": 1.0}, recording=recording, steps=9)
    status, error, steps = ask(path, "select status, error, steps from runs")[0]
    assert (status, steps) == ("failed", 3) and "too many" in error
    assert ask(path, "select kind, step, line, message from findings") == [
        ("error", 3, 6, "assert failed: too many")
    ]
    ran = ask(path, "select step, count(*) from executions where step >= 0 group by step")
    assert len(ran) == 4 and len({count for _, count in ran}) == 1, "all ops of the last one ran"


def test_an_interrupted_run(path):
    def stop() -> None:
        raise KeyboardInterrupt

    with opstep.Recording(workspace=path) as recording, pytest.raises(KeyboardInterrupt):
        train_program().run("main", train_inputs(), recording=recording, steps=9, on_step=stop)
    assert ask(path, "select status, steps from runs") == [("interrupted", 1)]


def test_selections(path):
    record(path, stats="none")
    record(path, stats="outputs")
    record(path, stats="main/q,param:*")
    names = ask(path, "select distinct run, name from stats join results using (run, op, result) "
                      "order by run, name")  # fmt: skip
    assert names == [(2, "loss"), (2, "r"), (3, "bias"), (3, "q"), (3, "w")]


def table(path: Path, name: str) -> list[tuple]:
    clock = {"executions": "run, execution, step, op, stream, turn"}.get(name, "*")
    return sorted(ask(path, f"select {clock} from {name}"), key=repr)


@pytest.mark.parametrize("spill, batch", [(0, 0), (3000, 0), (3000, 1 << 30)])
def test_large_steps_wait_in_temporary_tables(tmp_path, monkeypatch, spill, batch):
    """What goes through them is the same, and no half step is seen while it is there."""
    x = {"x": np.array([2.0**30], np.float32)}
    plain, spilled = tmp_path / "plain.db", tmp_path / "spilled.db"
    record(plain, opstep.loads(HALVING), x, steps=6)
    monkeypatch.setattr(sink, "SPILL", spill)
    monkeypatch.setattr(sink, "BATCH", batch)
    spills, seen = [], set()
    spill_one = sink.WorkspaceSink._spill

    def counted(self, state) -> None:
        spill_one(self, state)
        self.flush()
        spills.append(state.done)
        for name in ("executions", "stats"):
            seen.add(one(spilled, f"select coalesce(max(step), -1) from {name}") < state.done)

    monkeypatch.setattr(sink.WorkspaceSink, "_spill", counted)
    record(spilled, opstep.loads(HALVING), x, steps=6)
    assert set(spills) == set(range(6)) and seen == {True}
    for name in ("executions", "stats", "results"):
        assert table(plain, name) == table(spilled, name)


def test_what_is_wrong_in_a_spilled_step_is_found(path, monkeypatch):
    monkeypatch.setattr(sink, "SPILL", 0)
    record(path, opstep.loads(BEHIND), {"x": np.ones((2, 3), np.float32), "hidden": SOME})
    (message,) = ask(path, "select message from findings")[0]
    assert message == "log gives logs: 1 of 6 elements are infinite; its operands were finite"


def test_a_failed_step_that_was_spilled_is_not_there(path, monkeypatch):
    monkeypatch.setattr(sink, "SPILL", 0)
    text = HALVING.replace("test=large, body=half", "test=large, body=half, limit=5")
    with opstep.Recording(workspace=path) as recording, pytest.raises(OpstepError):
        opstep.loads(text).run("main", {"x": np.array([99.0], "f4")}, recording=recording)
    assert ask(path, "select count(*) from executions where step >= 0") == [(0,)]
    assert ask(path, "select status, steps from runs") == [("failed", 0)]


def test_several_runs_of_one_recording_at_once(path):
    """Programs that take turns keep their rows apart."""
    first, second = train_program(), opstep.loads(HALVING)
    with opstep.Recording(workspace=path) as recording:
        for k in range(3):
            first.run("main", train_inputs(seed=k), recording=recording)
            second.run("main", {"x": np.array([4.0], "f4")}, recording=recording)
    assert ask(path, "select id, steps, repeatable from runs") == [(1, 3, 1), (2, 3, 3)]
    counts = ask(path, "select run, step, count(*) from executions where step >= 0 group by 1, 2")
    assert len(counts) == 6 and len({(run, n) for run, _, n in counts}) == 2


def test_the_least_integer(path):
    """Its magnitude is no i64."""
    least = np.iinfo(np.int64).min
    program = opstep.loads("graph main(x: i64[2]) -> i64[2] {\n  y = mul(x, 1)\n  return y\n}\n")
    record(path, program, {"x": np.array([least, least + 1])})
    assert ask(path, "select distinct min, max, absmax from stats") == [(least, least + 1, 2.0**63)]


def test_a_path_that_is_no_utf_8(path):
    program = opstep.loads(TRAIN, "a\udcff.opg")
    program.params["bias"] = np.zeros(3, np.float32)
    record(path, program)
    assert one(path, "select file from runs") == "a?.opg"
    assert one(path, "select distinct file from ops where op >= 0") == "a?.opg"


def test_a_seed_that_no_column_holds(path):
    with opstep.Recording(workspace=path) as recording:
        with pytest.raises(InputError, match="it can be 0 to 9223372036854775807"):
            train_program().run("main", train_inputs(), recording=recording, seed=1 << 63)
        train_program().run("main", train_inputs(), recording=recording, seed=(1 << 63) - 1)
    assert ask(path, "select seed from runs") == [((1 << 63) - 1,)]


def test_digests_are_those_of_the_statistics(path):
    """Equal however a run was made, different where one element of one step is."""
    inputs = {"x": np.linspace(0.5, 9.0, 12, dtype=np.float32)}
    other = {"x": inputs["x"].copy()}
    other["x"][5] = np.nextafter(other["x"][5], np.float32(99))
    program = opstep.loads(HALVING)
    for values, options in ((inputs, {}), (inputs, {"mode": "debug"}), (other, {})):
        record(path, program, values, steps=2, **options)
    record(path, program, inputs, steps=3)
    sql = "select site, digest from ops where run = ? and digest is not null"
    same, debug, changed, longer = (dict(ask(path, sql, run)) for run in (1, 2, 3, 4))
    assert same and same == debug
    assert same.keys() == changed.keys() == longer.keys()
    (halved,) = (site for site in same if site.endswith("/y") and "half" in site)
    assert same[halved] != changed[halved]
    assert not set(same.items()) & set(longer.items())


def test_runs_of_one_event_loop_keep_apart(path):
    """Two that are under way at once are two runs; one after the other, steps of one."""
    program = train_program()

    async def both(recording) -> list[float]:
        runs = (
            program.run_async("main", train_inputs(seed=k), recording=recording, steps=5)
            for k in range(2)
        )
        return [float(result["loss"]) for result in await asyncio.gather(*runs)]

    with opstep.Recording(workspace=path) as recording:
        losses = asyncio.run(both(recording))
    for run, _ in enumerate(recording.runs, 1):
        per_step = ask(
            path, "select count(*) from executions where run = ? and step >= 0 group by step", run
        )
        assert len(set(per_step)) == 1
    ends = {v for (v,) in ask(path, "select value from metrics where name = 'loss'")}
    assert set(losses) <= ends
    assert one(path, "select sum(steps) from runs") == 10
    assert one(path, "select count(*) from metrics where name = 'loss'") == 10
