"""``opstep ws`` on files that are not workspaces, not whole, not ours, or in use."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE_S, cpu_seconds, open_files, wait_until
from workspaces import record

import opstep
from opstep.trace.workspace import schema

READ = [
    [],
    ["list"],
    ["load", "x"],
    ["load", "x", "-o", "out.npy"],
    ["sql", "select * from stats"],
    ["export", "stats", "-o", "out.csv"],
    ["plot", "stats.mean", "-o", "out.png"],
    ["compare", "1", "1"],
    ["rerun", "1"],
    ["rerun", "1", "--record"],
    ["prune", "--run", "1", "--yes"],
    ["open", "--no-browser"],
]


@pytest.fixture(params=READ, ids=lambda words: " ".join(words[:2]) or "summary")
def words(request):
    return request.param


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table runs (id)")
    connection.commit()
    connection.close()


def newer(path: Path) -> None:
    record(path)
    connection = sqlite3.connect(path)
    connection.execute(f"pragma user_version = {schema.VERSION + 1}")
    connection.close()


def truncated(path: Path) -> None:
    record(path, steps=20)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def corrupt(path: Path) -> None:
    record(path, steps=20)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + np.random.default_rng(0).bytes(len(whole) - 4096))


BAD = {
    "absent": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("graph main() {}\n" * 100),
    "foreign": foreign,
    "newer": newer,
    "truncated": truncated,
    "corrupt": corrupt,
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_cannot_be_read(cli, tmp_path, kind, words):
    path = tmp_path / "runs.db"
    BAD[kind](path)
    before = path.read_bytes() if path.is_file() else None
    outcome = cli("ws", "runs.db", *words)
    assert outcome.code == 2, outcome.out
    assert "error:" in outcome.err and "runs.db" in outcome.err
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not any(tmp_path.glob("out.*"))


@pytest.mark.parametrize("words", [w for w in READ if not {"-o", "rerun", "open"} & {*w}])
def test_damage_anywhere_is_told(cli, tmp_path, words):
    record(tmp_path / "whole.db", steps=5)
    whole = (tmp_path / "whole.db").read_bytes()
    codes = set()
    for seed in range(12):
        random = np.random.default_rng(seed)
        damaged = np.frombuffer(whole, np.uint8).copy()
        places = random.integers(100, len(whole), 400)
        damaged[places] = random.integers(0, 256, 400)
        (tmp_path / "runs.db").write_bytes(damaged)
        outcome = cli("ws", "runs.db", *words)
        assert outcome.code == 0 or "error:" in outcome.err
        codes.add(outcome.code)
    assert codes <= {0, 1, 2}


@pytest.mark.parametrize("kind", sorted(BAD.keys() - {"absent", "empty"}))
def test_nothing_is_saved_in_them(cli, tmp_path, write, kind):
    np.save(tmp_path / "a.npy", np.arange(3))
    path = tmp_path / "runs.db"
    BAD[kind](path)
    before = path.read_bytes() if path.is_file() else None
    outcome = cli("ws", "runs.db", "save", "a=a.npy")
    assert outcome.code == 2 and "runs.db" in outcome.err
    assert (path.read_bytes() if path.is_file() else None) == before


def test_reading_goes_on_while_another_process_writes(cli, tmp_path):
    key = record(tmp_path / "runs.db")
    writer = sqlite3.connect("runs.db", isolation_level=None)
    writer.execute("begin immediate")
    writer.execute("delete from metrics")
    assert key in cli("ws", "runs.db").out
    assert cli("ws", "runs.db", "load", "x").code == 0
    writer.execute("rollback")
    writer.close()


def test_writing_waits_no_longer_than_it_should(cli, tmp_path, monkeypatch):
    from opstep.trace.workspace import store

    monkeypatch.setattr(store, "BUSY_S", 0.2)
    record(tmp_path / "runs.db")
    np.save(tmp_path / "a.npy", np.arange(3))
    writer = sqlite3.connect("runs.db", isolation_level=None)
    writer.execute("begin immediate")
    for words in (["save", "a=a.npy"], ["prune", "--run", "1", "--yes"],
                  ["sql", "delete from metrics", "--write"]):  # fmt: skip
        outcome = cli("ws", "runs.db", *words)
        assert outcome.code == 2 and "another process is writing" in outcome.err, outcome.err
    writer.execute("rollback")
    writer.close()
    assert cli("ws", "runs.db", "save", "a=a.npy").code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(cli, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    key = record(folder / "runs.db")
    folder.chmod(0o500)
    try:
        assert key in cli("ws", "locked/runs.db").out
        assert cli("ws", "locked/runs.db", "load", "x", "-o", "locked/x.npy").code == 2
    finally:
        folder.chmod(0o700)


def test_ctrl_c_ends_a_question(tmp_path):
    opstep.Workspace.create(tmp_path / "runs.db")
    endless = (
        "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"
    )
    command = [sys.executable, "-m", "opstep", "ws", str(tmp_path / "runs.db"), "sql", endless]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: str(tmp_path / "runs.db") in open_files(process.pid))
    used = cpu_seconds(process.pid)
    wait_until(lambda: cpu_seconds(process.pid) > used + 0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err


def test_a_reader_that_leaves_is_no_error(tmp_path):
    opstep.Workspace.create(tmp_path / "runs.db")
    many = "with recursive n(x) as (select 1 union all select x + 1 from n) select x from n"
    line = f'{sys.executable} -m opstep ws {tmp_path}/runs.db sql "{many}" --csv | head -3'
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["x", "1", "2"]
    assert done.stderr == ""
