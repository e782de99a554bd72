"""``opstep ws`` on workspaces whose rows somebody has changed, and on odd names."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest
from workspaces import record

import opstep
from opstep.trace.workspace.damage import damage

CHANGES = {
    "shape below 0": "update tensors set shape = '[-3, -4]'",
    "shape too large": "update tensors set shape = '[9000000000, 9000000000]'",
    "shape of texts": """update tensors set shape = '["a", 4]'""",
    "shape a number": "update tensors set shape = '5'",
    "size below 0": "update tensors set nbytes = -1",
    "size a text": "update tensors set nbytes = 'abc'",
    "other dtype": "update tensors set dtype = 'i64'",
    "bytes null": "update blobs set data = null",
    "bytes gone": "delete from blobs",
    "name null": "update tensors set name = null",
    "graph null": "update runs set graph = null",
    "seed a text": "update runs set seed = 'a'",
    "steps a text": "update runs set steps = 'x'",
    "program no text": "update runs set program = x'00ff'",
    "program wrong": "update runs set program = 'graph main( {'",
    "ops gone": "delete from ops",
    "results gone": "delete from results",
    "operands no JSON": "update ops set operands = '[1, 2'",
    "attrs no object": "update ops set attrs = '[]'",
    "histogram no JSON": "update stats set histogram = '[1'",
}
VERBS = [
    [], ["--json"], ["list"], ["list", "runs"], ["load", "x@1"], ["compare", "1", "2"],
    ["rerun", "1"], ["plot", "stats.absmax", "-o", "out.svg"], ["prune", "--run", "1", "--dry-run"],
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_rows_are_no_bug(cli, tmp_path, change):
    for _ in range(2):
        record(tmp_path / "runs.db")
    connection = sqlite3.connect(tmp_path / "runs.db")
    connection.executescript(change)
    connection.close()
    for words in VERBS:
        done = cli("ws", "runs.db", *words)
        assert done.code in (0, 1, 2), (words, done.err)
        assert "internal error" not in done.err, (words, done.err)


def test_what_opstep_writes_is_not_damaged(tmp_path):
    program = opstep.loads(
        "state n: i32[] = 0\n"
        "graph main(x: f32[0, 4]) -> f32[0, 4], f32[] {\n"
        "  y = relu(x)\n  s = max(y, axes=[1])\n  t = sum(s)\n  k = add(n, 1)\n  n <- k\n"
        "  return y, t\n}\n"
    )
    record(tmp_path / "runs.db")
    with opstep.Recording(workspace=tmp_path / "runs.db", stats="none") as recording:
        program.run("main", {"x": np.zeros((0, 4), "f4")}, recording=recording)
    with opstep.Recording(workspace=tmp_path / "runs.db") as recording:
        program.run("main", {"x": np.zeros((0, 4), "f4")}, recording=recording, mode="debug")
    assert damage(tmp_path / "runs.db") is None


def test_a_damaged_schema_is_told(cli, tmp_path):
    record(tmp_path / "runs.db")
    connection = sqlite3.connect(tmp_path / "runs.db")
    connection.execute("pragma writable_schema = 1")
    connection.execute(
        "update sqlite_master set sql = cast(x'435245415445205441424c45206f7073fff4' as text) "
        "where name = 'ops'"
    )
    connection.commit()
    connection.close()
    for words in VERBS:
        done = cli("ws", "runs.db", *words)
        assert done.code == 2
        assert "damaged" in done.err


def test_names_that_look_like_markup(cli, tmp_path):
    np.save(tmp_path / "w.npy", np.ones(3, "f4"))
    for name in ("[/bold]", "[red]w", "it's w"):
        assert cli("ws", "runs.db", "save", f"{name}=w.npy").code == 0
    for words in ([], ["list"]):
        done = cli("ws", "runs.db", *words)
        assert done.code == 0
        assert "[/bold]" in done.out
        assert "[red]w" in done.out
    assert """load 'it'"'"'s w' -o""" in cli("ws", "runs.db").out


@pytest.mark.parametrize("words", [[], ["list"], ["list", "runs"], ["compare", "1", "2"]])
def test_nothing_in_a_file_moves_the_cursor(cli, tmp_path, words):
    for _ in range(2):
        record(tmp_path / "runs.db")
    connection = sqlite3.connect(tmp_path / "runs.db")
    connection.executescript(
        "update tensors set name = char(27) || '[2J' || name, dtype = char(27) || '[31m';"
        "update runs set graph = char(27) || '[2J', file = char(27) || '[31m.opg';"
        "update ops set site = char(27) || site, name = char(7) || name;"
    )
    connection.close()
    done = cli("ws", "runs.db", *words)
    assert done.out
    assert not {"\x1b", "\x07"} & {*done.out, *done.err}


def test_a_pipe_is_no_workspace(cli, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "same.opg").write_text("graph main(x: f32[3]) -> f32[3] {\n  return x\n}\n")
    for words in (["ws", "pipe"], ["run", "same.opg", "-i", "random", "-w", "pipe"]):
        done = cli(*words)
        assert done.code == 2
        assert "pipe is not a file" in done.err


def test_a_run_that_does_not_begin_has_written_nothing(cli, tmp_path):
    (tmp_path / "same.opg").write_text("graph main(x: f32[3]) -> f32[3] {\n  return x\n}\n")
    np.save(tmp_path / "x.npy", np.ones(4, "f4"))
    done = cli("run", "same.opg", "-i", "x=x.npy", "-w", "runs.db", "--trace", "run.pftrace")
    assert done.code == 2
    assert "wrote" not in done.err
    assert not (tmp_path / "run.pftrace").exists()
