"""Workspaces under fire: killed writers, several writers at once, disks that fill, locked files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE_S
from workspaces import TRAIN, record, sound, train_inputs, train_program

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace import store

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def python(*arguments: str, **options) -> subprocess.Popen:
    """A process that finds opstep and the helpers of the tests."""
    environment = {"PYTHONPATH": f"{ROOT}:{HERE.parent}/shared", "PATH": "/usr/bin:/bin"}
    environment["HOME"] = str(Path.home())  # where compiled kernels are kept
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def steps_of(path: Path, timeout: float = 0) -> dict[int, int]:
    """Steps of each run, all of them whole, as they stand at one moment."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=timeout)
    connection.execute("begin")
    told = dict(connection.execute("select id, steps from runs").fetchall())
    for table in ("steps", "executions", "stats", "metrics"):
        rows: dict[int, dict[int, int]] = {run: {} for run in told}
        for run, step, count in connection.execute(
            f"select run, step, count(*) from {table} where step >= 0 group by run, step"
        ):
            rows[run][step] = count
        for run, counts in rows.items():
            assert sorted(counts) == list(range(told[run])), table
            assert len(set(counts.values())) <= 1, f"half a step in {table}"
    connection.close()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("options", [("10", "--no-trace"), ("3", "--seed", "1")])
def test_killed_writers_leave_whole_steps(options):
    process = python(str(HERE / "kill.py"), *options)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert out.startswith(f"{options[0]} killed: ")
    assert int(out.split(": ")[1].split()[0]) > 0, "all were killed too early to have a step"


WRITER = """
import sys, opstep
from workspaces import train_inputs, train_program

for seed in range(2):
    with opstep.Recording(workspace=sys.argv[1]) as recording:
        train_program().run("main", train_inputs(seed=seed), recording=recording, steps=60)
    print(recording.runs[0].key, recording.close()[0].problem)
"""


def test_several_processes_write_and_others_read(tmp_path):
    path = tmp_path / "runs.db"
    record(path)  # a reader without patience finds the tables there
    connection = sqlite3.connect(path)  # who leaves a file last has it alone for a moment: nobody
    connection.execute("select * from runs").fetchall()
    writers = [python("-c", WRITER, str(path)) for _ in range(3)]
    seen = [steps_of(path)]
    while any(w.poll() is None for w in writers):
        seen.append(steps_of(path))
        time.sleep(0.05)  # the processors are for the writers
    told = [w.communicate() for w in writers]
    assert [w.returncode for w in writers] == [0, 0, 0], told
    lines = [line.split() for out, _ in told for line in out.splitlines()]
    assert [problem for _, problem in lines] == ["None"] * 6
    sound(path)
    keys = {k for (k,) in connection.execute("select key from runs where id > 1")}
    assert keys == {key for key, _ in lines}
    assert steps_of(path) == {1: 1} | dict.fromkeys(range(2, 8), 60)
    for before, after in pairwise(seen):
        assert all(after[run] >= steps for run, steps in before.items()), "a step went away"
    same = connection.execute(
        "select count(distinct digest) from ops where name <> 'update' group by site "
        "having count(*) = 7 and site like 'main/%'"
    ).fetchall()
    assert same and max(same) <= (3,), "runs of the same data have the same statistics"
    connection.close()


def test_processes_that_make_the_same_file_at_once(tmp_path):
    path = tmp_path / "runs.db"
    script = "import sys; from pathlib import Path; from opstep.trace.workspace import store\n"
    script += "sys.stdin.read()\nfor k in range(60): store.open_writing(Path(sys.argv[1] + str(k)))"
    makers = [python("-c", script, str(path), stdin=subprocess.PIPE) for _ in range(3)]
    for maker in makers:
        maker.stdin.close()
        maker.stdin = None
    told = [maker.communicate() for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0, 0], told
    for k in range(60):
        store.open_reading(Path(f"{path}{k}")).close()


FULL = """
import resource, sys, opstep
from workspaces import train_inputs, train_program

limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
recording = opstep.Recording(workspace=sys.argv[1])
told = 0

def tell():
    global told
    told += 1
    if sys.argv[3:]:
        recording.barrier()  # it fills step by step
    if told == 390 and sys.argv[3:] == ["interrupted"]:
        print(recording.close()[0].problem)
        sys.exit()

result = train_program().run("main", train_inputs(), recording=recording, steps=400, on_step=tell)
written = recording.close()[0]
print(result.plan.graph, float(result["loss"]), written.problem)
"""


@pytest.mark.parametrize("limit", [0, 60_000, 200_000])
def test_a_disk_without_room_for_the_file_itself(tmp_path, limit):
    path = tmp_path / "runs.db"
    process = python("-c", FULL, str(path), str(limit))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    graph, loss, problem = out.split(maxsplit=2)
    whole = train_program().run("main", train_inputs(), steps=400)
    assert (graph, float(loss)) == ("main", float(whole["loss"])), "the run itself is finished"
    assert "no room is left" in problem and "make room" in problem
    record(path)  # there is room again
    assert len(steps_of(path, timeout=5)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["incomplete", "interrupted"])
def test_what_a_full_disk_has_of_a_run_is_repeated(tmp_path, ended):
    path = tmp_path / "runs.db"
    process = python("-c", FULL, str(path), "450000", ended)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "no room is left" in out, err
    with opstep.Workspace(path) as ws:
        run = ws.run("last")
        finished = 390 if ended == "interrupted" else 400
        told = f"{run.steps} of {finished} steps are recorded: the file could not be written"
        assert run.status == ended and 0 < run.steps < finished and told in str(run.cut)
        assert [(f.kind, f.step) for f in run.findings] == [("cut", run.steps)]
        again = ws.rerun(run)
        assert again.identical and again.same and again.steps == run.steps
        assert again.cut == run.cut


@pytest.mark.slow
@pytest.mark.parametrize("limit", [300_000, 450_000, 600_000])
def test_a_disk_that_fills(tmp_path, limit):
    path = tmp_path / "runs.db"
    process = python("-c", FULL, str(path), str(limit))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    graph, loss, problem = out.split(maxsplit=2)
    whole = train_program().run("main", train_inputs(), steps=400)
    assert (graph, float(loss)) == ("main", float(whole["loss"])), "the run itself is finished"
    assert "disk" in problem
    sound(path)
    steps = steps_of(path, timeout=5)
    assert steps == {} or 0 <= steps[1] < 400
    with closing(sqlite3.connect(path)) as connection:
        kept = connection.execute("select status from runs").fetchall()
        assert kept == [("incomplete",)] * len(steps), "the run went well"
    record(path)  # there is room again
    assert len(steps_of(path, timeout=5)) == len(steps) + 1


def test_what_came_before_a_full_disk_stays(tmp_path):
    path = tmp_path / "runs.db"
    record(path, steps=5)
    before = path.stat().st_size
    process = python("-c", FULL, str(path), str(before))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "disk" in out, err
    sound(path)
    assert steps_of(path, timeout=5)[1] == 5


def test_a_file_that_stays_locked_is_told_before_the_run(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    record(path)
    monkeypatch.setattr(store, "BUSY_S", 0.1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(InputError, match="another process is writing to it"):
        opstep.Recording(workspace=path)
    other.execute("rollback")
    other.close()
    record(path)


def test_a_file_that_is_locked_in_mid_run_costs_only_the_recording(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    monkeypatch.setattr(store, "BUSY_S", 0.1)
    program, other = train_program(), None
    recording = opstep.Recording(workspace=path)

    def lock() -> None:
        nonlocal other
        if other is None:
            recording.barrier()
            other = sqlite3.connect(path, isolation_level=None, timeout=5)
            other.execute("begin immediate")

    result = program.run("main", train_inputs(), recording=recording, steps=5, on_step=lock)
    assert "locked" in str(recording.close()[0].problem)
    again = train_program().run("main", train_inputs(), steps=5)
    assert np.array_equal(result["loss"], again["loss"])
    other.execute("rollback")
    other.close()
    sound(path)
    assert steps_of(path) == {1: 1}


@pytest.mark.parametrize("kind", ["folder", "text", "foreign", "newer", "no folder"])
def test_a_run_does_not_begin_where_it_cannot_be_recorded(tmp_path, kind):
    path = tmp_path / "runs.db"
    match kind:
        case "folder":
            path.mkdir()
        case "text":
            path.write_text(TRAIN)
        case "foreign" | "newer":
            connection = sqlite3.connect(path)
            connection.execute("create table t (a)")
            if kind == "newer":
                connection.execute(f"pragma application_id = {store.APPLICATION}")
                connection.execute(f"pragma user_version = {store.VERSION + 1}")
            connection.commit()
            connection.close()
        case "no folder":
            path = tmp_path / "absent" / "runs.db"
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(InputError) as caught:
        opstep.Recording(workspace=path)
    assert path.name in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before
