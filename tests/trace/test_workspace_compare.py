"""Runs beside each other: `compare`, `rerun` and `prune` of a workspace."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest
from workspaces import CHANGED, HALVING, ROOTS, TRAIN, record, train_inputs, train_program

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import prune


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def alter(path, text, *parameters):
    """Changes a workspace behind its back."""
    connection = sqlite3.connect(path)
    assert connection.execute(text, parameters).rowcount > 0
    connection.execute("update ops set digest = null")  # of the statistics as they were
    connection.commit()
    connection.close()


# --- compare --------------------------------------------------------------------------------------


def test_the_same_run_twice_is_the_same(path):
    record(path, steps=3)
    record(path, steps=3, streams=2, threads=1, alloc="fresh")
    with opstep.Workspace(path) as ws:
        found = ws.compare(1, 2)
        assert found.same and found.first is None
        assert found.compared == len(ws.run(1).stats())
        assert {f.name for f in found.settings} == {"streams", "threads", "alloc"}


def test_the_first_op_that_differs_is_named(path):
    record(path, steps=3)
    record(path, train_program(CHANGED), steps=3)
    with opstep.Workspace(path) as ws:
        found = ws.compare(1, 2)
        assert not found.same
        assert (found.first.step, found.first.site, found.first.value) == (0, "main/q", "q")
        assert (found.first.op, found.first.line) == ("square", 9)
        figures = {f.name: (f.first, f.second) for f in found.first.figures}
        (a,), (b,) = (ws.run(run).stats("main/q", step=0) for run in (1, 2))
        assert figures["absmax"] == (a.statistics.absmax, b.statistics.absmax)
        assert "program" in {f.name for f in found.settings}
        assert "loss" in {f.name for f in found.tensors}


def test_the_first_in_time_comes_first_whatever_the_order_of_the_plan(path):
    record(path)
    record(path)
    last = "(select max(execution) from stats where run = 2)"
    alter(path, "update stats set absmax = 7 where run = 2 and op in (2, 4)")
    alter(path, "update executions set start_ns = 1 where run = 1 and op = 4")
    with opstep.Workspace(path) as ws:
        site = next(op.site for op in ws.run(1).ops if op.op == 4)
        assert ws.compare(1, 2).first.site == site, last


def test_a_difference_of_one_bit_counts_unless_tolerated(path):
    record(path)
    record(path)
    with opstep.Workspace(path) as ws:
        (stat,) = ws.run(2).stats("relu")
        near = float(np.nextafter(stat.statistics.mean, 1))
        alter(path, "update stats set mean = ? where run = 2 and op = ?", near, stat.op)
        (figure,) = ws.compare(1, 2).first.figures
        assert figure == ("mean", stat.statistics.mean, near)
        assert ws.compare(1, 2, rtol=1e-12).same
        alter(path, "update stats set nan = 1 where run = 2 and op = ?", stat.op)
        assert [f.name for f in ws.compare(1, 2, rtol=0.5).first.figures] == ["nan"]


def test_what_the_digests_say_is_what_the_rows_say(path):
    for text in (TRAIN, TRAIN, CHANGED):
        record(path, train_program(text), steps=3, streams=2)
    with opstep.Workspace(path) as ws:
        pairs = [(1, 2), (1, 3), (2, 1)]
        quick = [ws.compare(*pair) for pair in pairs]
        alter(path, "update runs set pid = 0")
        slow = [ws.compare(*pair) for pair in pairs]
    assert [(c.first, c.compared, c.same) for c in quick] == [
        (c.first, c.compared, c.same) for c in slow
    ]
    assert [c.same for c in quick] == [True, False, True]


def test_turns_of_loops_are_matched(path):
    for start in (9.0, 9.0, 3.0):
        record(path, opstep.loads(HALVING), {"x": np.array([start, 1.5], np.float32)})
    with opstep.Workspace(path) as ws:
        assert ws.compare(1, 2).same
        (last,) = ws.run(2).stats("mul")[-1:]
        alter(path, "update stats set max = 8 where run = 2 and execution = ?", last.execution)
        first = ws.compare(1, 2).first
        assert (first.op, first.turn) == ("mul", 3)
        found = ws.compare(1, 3)
        assert [(d.step, d.op, d.value) for d in found.initial] == [(-1, "input", "x")]
        assert (found.first.step, found.first.op) == (0, "mul") and not found.same


def test_what_only_one_run_has(path):
    key = record(path)
    record(path, stats="relu:*")
    record(path, stats="none")
    with opstep.Workspace(path) as ws:
        found = ws.compare(1, 2)
        assert found.first.only == key
        assert found.compared == 1
        assert (ws.compare(1, 3).compared, ws.compare(1, 3).same) == (0, True)


def test_steps_that_both_have_are_compared(path):
    record(path, steps=5, stats_every=2)
    record(path, steps=4, stats_every=3)
    with opstep.Workspace(path) as ws:
        both = len(ws.run(1).stats(step=-1)) + len(ws.run(1).stats(step=0))
        assert ws.compare(1, 2).compared == both
        alter(path, "update stats set absmax = 7 where run = 1 and step in (2, 4)")
        assert ws.compare(1, 2).first is None, "step 0 is the only one in both"


# --- rerun ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"steps": 4, "seed": 9, "streams": 3, "fill": "nan"}])
def test_a_run_is_repeated_from_the_workspace_alone(path, options):
    record(path, **options)
    with opstep.Workspace(path) as ws:
        repeated = ws.rerun("last")
        assert repeated.identical and repeated.steps == options.get("steps", 1)
        assert set(repeated.same) >= {"loss", "r", "bias", "count"}


def test_params_that_were_trained_before_are_kept(path):
    program = train_program()
    program.run("main", train_inputs(), steps=3)
    program.params["w"] = np.ones((3, 2), np.float32)
    record(path, program, steps=2)
    with opstep.Workspace(path) as ws:
        assert ws["count@last:-1"] == 3
        assert ws.rerun("last").identical


def test_a_difference_is_found(path):
    record(path)
    alter(path, "update runs set program = ?", CHANGED)
    with opstep.Workspace(path) as ws:
        repeated = ws.rerun("last")
        assert not repeated.identical
        assert repeated.different == ["loss"]
        assert set(repeated.same) >= {"r", "bias", "count"}


def test_a_failed_run_has_to_fail_again(path):
    text = TRAIN.replace("  n = add", '  fine = less(count, 2)\n  assert fine, "enough"\n  n = add')
    with pytest.raises(opstep.OpstepError, match="enough"):
        record(path, train_program(text), steps=5)
    with opstep.Workspace(path) as ws:
        run = ws.run()
        assert (run.status, run.steps) == ("failed", 2)
        repeated = ws.rerun(run)
        assert repeated.identical and "enough" in repeated.error
        alter(path, "update runs set program = ?", TRAIN)
        repeated = ws.rerun("last")
        assert not repeated.identical and repeated.error is None


def test_a_repeat_is_recorded(path):
    record(path, steps=2)
    with opstep.Workspace(path) as ws:
        with opstep.Recording(workspace=path) as recording:
            ws.rerun("last", recording=recording)
        assert len(ws.runs) == 2
        assert ws.compare(1, 2).same and ws.compare(1, 2).settings == []


def test_steps_with_inputs_of_their_own(path):
    program = train_program()
    with opstep.Recording(workspace=path) as recording:
        for seed in (0, 0, 1, 0):
            program.run("main", train_inputs(seed=seed), recording=recording)
    with opstep.Workspace(path) as ws:
        assert (ws.run().steps, ws.run().repeatable) == (4, 2)
        repeated = ws.rerun("last")
        assert repeated.identical and (repeated.steps, repeated.same) == (2, ["loss"])
        with opstep.Recording(workspace=path) as recording:
            ws.rerun("last", recording=recording)
        found = ws.compare(1, 2)
        assert found.same and found.compared == len(ws.run(2).stats())


def test_inputs_that_are_changed_in_place_are_other_inputs(path):
    program, inputs = train_program(), train_inputs()
    with opstep.Recording(workspace=path) as recording:
        for _ in range(2):
            program.run("main", inputs, recording=recording, steps=2)
            inputs["x"][0, 0] = -0.0
    with opstep.Workspace(path) as ws:
        assert (ws.run().steps, ws.run().repeatable) == (4, 2)


def test_what_is_missing_is_named(path):
    record(path)
    alter(path, "delete from tensors where name = 'x'")
    with opstep.Workspace(path) as ws, pytest.raises(InputError, match="not kept: x"):
        ws.rerun("last")


# --- prune ----------------------------------------------------------------------------------------


def rows(path) -> dict[str, int]:
    connection = sqlite3.connect(path)
    tables = connection.execute(
        "select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'"
    ).fetchall()
    found = {t: connection.execute(f"select count(*) from {t}").fetchone()[0] for (t,) in tables}
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert connection.execute("pragma foreign_key_check").fetchall() == []
    connection.close()
    return found


def test_a_run_goes_with_all_that_is_its_own(path):
    record(path, inputs=train_inputs(seed=0))
    alone = rows(path)
    record(path, inputs=train_inputs(rows=1000, seed=1), steps=3)
    record(path, opstep.loads(ROOTS), {"x": np.array([0.5], np.float32)})
    with opstep.Workspace(path) as ws:
        ws.save("mine", np.arange(5.0))
        before = path.stat().st_size
        done = ws.prune([2, "last"])
        assert done.runs == 2 and done.compacted and done.freed > 0
        assert path.stat().st_size < before
        assert [run.id for run in ws.runs] == [1]
        assert (ws["mine"] == np.arange(5.0)).all()
        assert ws.rerun(1).identical
        ws.prune([1])
        assert ws.names() == ["mine"]
    left = rows(path)
    assert left["blobs"] == left["tensors"] == 1
    assert not any(n for t, n in left.items() if t in alone.keys() - {"blobs", "tensors"})


def test_bytes_that_others_refer_to_stay(path):
    for _ in range(2):
        record(path)
    with opstep.Workspace(path) as ws:
        ws.prune([1])
        assert (ws["x"] == train_inputs()["x"]).all()
        assert ws.rerun(2).identical


def test_pruning_while_another_process_reads(path, monkeypatch):
    monkeypatch.setattr(prune, "COMPACT_S", 0.1)
    for _ in range(2):
        record(path, steps=20)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("begin")
    assert reader.execute("select count(*) from runs").fetchone() == (2,)
    with opstep.Workspace(path) as ws:
        done = ws.prune([1])
        assert done.runs == 1 and not done.compacted
        assert [run.id for run in ws.runs] == [2]
    assert reader.execute("select count(*) from runs").fetchone() == (2,), "its moment"
    reader.close()
    assert rows(path)["runs"] == 1


def test_what_runs_take(path):
    record(path, inputs=train_inputs(rows=4))
    record(path, inputs=train_inputs(rows=100_000, seed=1))
    with opstep.Workspace(path) as ws:
        sizes = ws.run_bytes()
    assert sizes.keys() == {1, 2}
    assert sizes[2] > 2_000_000 > sizes[1] > 0
    assert sum(sizes.values()) <= os.path.getsize(path) * 1.01
