"""A recording that goes wrong in mid-run: the run is finished, and what was lost is told, once."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE_S
from workspaces import TRAIN, record, sound, train_inputs, train_program

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.trace.recording import Recording
from opstep.trace.sink import SinkReport
from opstep.trace.viewer.engine import Engine

ROOT = Path(__file__).parent.parent.parent
STEPS = 800

LIMITED = """
import resource, sys
from opstep.cli.main import main

limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(sys.argv[1:]))
"""


def opstep_run(folder: Path, limit: int, *options: str) -> subprocess.CompletedProcess[str]:
    """``opstep run`` of `TRAIN`, which cannot write files of more than `limit` bytes."""
    text = TRAIN.replace("param bias: f32[3]", "param bias: f32[3] = normal(std=0.5)")
    (folder / "train.opg").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), "run", "train.opg", "--symbol", "N=4",
         "--input", "random", "--steps", str(STEPS), *options],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip


def assert_counted(path: Path, written: SinkReport) -> None:
    """What is told of a file is what it has."""
    tables = {"step": "steps where step >= 0", "execution": "executions", "tensor": "tensors",
              "statistics row": "stats"}  # fmt: skip
    connection = sqlite3.connect(path)
    for what, count in written.counts:
        rows = connection.execute(f"select count(*) from {tables[what]}").fetchone()[0]
        assert rows == count, what
    connection.close()


def loads_whole(path: Path) -> int:
    """The timeline loads without an error in the real engine; how many steps it shows."""
    with Engine(path) as engine:
        wrong = "select name, value from stats where severity != 'info' and value != 0"
        assert not engine.query(wrong).rows
        return engine.query("select count() from slice where name glob 'step [0-9]*'").rows[0][0]


def test_a_disk_that_fills_costs_only_the_files(tmp_path):
    plain = opstep_run(tmp_path, 1 << 30)
    assert plain.returncode == 0, plain.stderr
    full = opstep_run(tmp_path, 300_000, "--workspace", "runs.db", "--trace", "run.pftrace")
    assert full.returncode == 4, full.stderr
    results = [line for line in plain.stdout.splitlines() if "loss" in line]
    assert results and [line for line in full.stdout.splitlines() if "loss" in line] == results
    told = full.stdout + full.stderr
    for name in ("runs.db", "run.pftrace"):
        assert told.count(f"{name} is incomplete: ") == 1, told
    assert "Traceback" not in told
    sound(tmp_path / "runs.db")
    assert 0 < loads_whole(tmp_path / "run.pftrace") < STEPS


def test_a_disk_without_room_for_a_workspace_costs_only_that(tmp_path):
    full = opstep_run(tmp_path, 60_000, "--workspace", "runs.db")
    assert full.returncode == 4, full.stderr
    assert "loss" in full.stdout
    assert full.stderr.count("runs.db is incomplete: no room is left on its disk") == 1
    assert "make room" in full.stderr and "wrote" not in full.stderr


def test_a_folder_that_goes_away_is_told(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    recording = opstep.Recording(workspace=folder / "runs.db", trace=folder / "run.pftrace")

    def remove() -> None:
        if folder.exists():
            recording.barrier()
            shutil.rmtree(folder)

    result = train_program().run(
        "main", train_inputs(), recording=recording, steps=20, on_step=remove
    )
    problems = [str(written.problem) for written in recording.close()]
    assert len(problems) == 2 and all("gone" in p or "no such file" in p.lower() for p in problems)
    again = train_program().run("main", train_inputs(), steps=20)
    assert np.array_equal(result["loss"], again["loss"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[tuple[str, int]]:
    """What a timeline of three steps has."""
    recording = opstep.Recording(trace=tmp_path_factory.mktemp("whole") / "run.pftrace")
    train_program().run("main", train_inputs(), recording=recording, steps=3)
    (written,) = recording.close()
    assert dict(written.counts)["slice"] > 3 * 9
    return written.counts


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("method", ["begin_run", "add_record", "end_step", "end_run", "flush"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a slip")])
def test_a_sink_that_raises_is_only_closed(tmp_path, undisturbed, bad, method, error):
    path, trace = tmp_path / "runs.db", tmp_path / "run.pftrace"
    recording = Recording(workspace=path, trace=trace)
    sink, calls = recording._guards[bad].sink, []

    def fail(*given: object) -> None:
        calls.append("failed")
        if calls.count("failed") == 1:
            raise error

    def called(name: str) -> None:
        real = getattr(sink, name)
        setattr(sink, name, lambda *given: (calls.append(name), real(*given))[1])

    for name in ("begin_run", "add_record", "end_step", "end_run", "flush", "close"):
        called(name)
    setattr(sink, method, fail)
    train_program().run("main", train_inputs(), recording=recording, steps=3)
    written = recording.close()
    assert calls[calls.index("failed") + 1] == "close", "nothing but its end is asked of it"
    words = "No space left on device" if isinstance(error, OSError) else "ValueError: a slip"
    assert words in str(written[bad].problem) and written[1 - bad].problem is None
    sound(path)
    assert_counted(path, written[0])
    if bad:
        connection = sqlite3.connect(path)
        assert connection.execute("select status, steps from runs").fetchall() == [("done", 3)]
        connection.close()
    else:
        counts, whole = dict(written[1].counts), dict(undisturbed)
        assert (counts["run"], counts["flow"]) == (whole["run"], whole["flow"])
        assert counts["slice"] > whole["slice"]  # those of statistics with them
        connection = sqlite3.connect(path)
        kept = connection.execute("select status, error from runs").fetchall()
        connection.close()
        whole = "end_run" in calls[: calls.index("failed")]
        ended = "done" if whole else "incomplete"
        assert kept == [(ended, None)] * (method != "begin_run"), "the run went well"


# --- files that cannot be used --------------------------------------------------------------------

REFUSED = """
import os, sys, opstep
from opstep.runtime.ir.errors import InputError

opstep.Recording(workspace=sys.argv[2]).close()  # all modules are loaded then
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    opstep.Recording(workspace=sys.argv[1])
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_not_be_written_is_told_before_the_run(tmp_path, what):
    """As another user where the tests are run by root, whom no mode stops."""
    folder = Path("/tmp") / f"opstep-{os.getpid()}-{what}"
    folder.mkdir()
    path = folder / "runs.db"
    try:
        record(path)
        before = path.read_bytes()
        if what == "folder":
            path.unlink()
        else:
            path.chmod(0o444)
        folder.chmod(0o555)
        process = subprocess.run(
            [sys.executable, "-c", REFUSED, str(path), str(tmp_path / "other.db")],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        assert "runs.db: it cannot be written" in process.stdout
        assert what == "folder" or path.read_bytes() == before
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("at", [0, 100, 8192])
def test_a_damaged_file_is_told(tmp_path, at):
    """Its first page, or all pages after it."""
    path = tmp_path / "runs.db"
    record(path)
    content = bytearray(path.read_bytes())
    end = len(content) if at == 8192 else at + 100
    content[max(at, 16) : end] = b"\xa5" * (end - max(at, 16))
    path.write_bytes(content)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    with pytest.raises(InputError, match=r"runs\.db"), opstep.Workspace(path) as ws:
        list(ws.runs)
    assert path.read_bytes() == bytes(content)
