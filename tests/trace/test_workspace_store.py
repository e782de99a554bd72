"""The file of a workspace: how it is made, opened, brought up to date; tensors in it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workspaces import record

import opstep
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DTYPES
from opstep.trace.workspace import blobs, schema, store
from opstep.trace.workspace.browsing.catalog import is_workspace
from opstep.trace.workspace.store import create_table
from opstep.trace.workspace.views import VIEWS


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "runs.db"


def test_a_new_file_is_what_the_schema_describes(path):
    connection = store.open_writing(path)

    def pragma(name):
        return connection.execute(f"pragma {name}").fetchone()[0]

    assert pragma("application_id") == schema.APPLICATION
    assert pragma("user_version") == schema.VERSION
    assert pragma("journal_mode") == "wal"
    names = {
        kind: {n for (n,) in connection.execute(
            "select name from sqlite_master where type = ? and name not like 'sqlite_%'", (kind,)
        )} for kind in ("table", "view")
    }  # fmt: skip
    assert names == {"table": {t.name for t in schema.TABLES}, "view": {v.name for v in VIEWS}}
    for table in schema.TABLES:
        found = connection.execute(f"pragma table_info({table.name})").fetchall()
        assert [(name, kind) for _, name, kind, *_ in found] == [
            (c.name, c.type) for c in table.columns
        ]
        keys = connection.execute(f"pragma foreign_key_list({table.name})").fetchall()
        assert {(k[3], k[2]) for k in keys} == {
            (c.name, c.references) for c in table.columns if c.references
        }
    connection.close()


NAMES = (
    "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('select name from settings'))"
)


@pytest.mark.parametrize(
    "look", [lambda path: store.open_reading(path).close(), is_workspace, opstep.Workspace]
)
def test_a_look_at_a_file_leaves_the_locks_of_who_writes_to_it(path, look):
    """Without them another process that reads is the last to close it, and removes the log."""

    def read() -> str:
        line = [sys.executable, "-c", NAMES, str(path)]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    writer = store.open_writing(path)
    writer.execute("pragma foreign_keys = 0")
    held = look(path)
    assert read() == "\n"
    writer.execute("insert into settings values (1, 'tag', 'lr', 0.1)")
    assert read() == "('lr',)\n"
    writer.close()
    if held and held is not True:
        held.close()


def test_every_table_and_column_is_described():
    for described in (*schema.TABLES, *VIEWS):
        assert described.what.strip().endswith(".")
    for table in schema.TABLES:
        assert all(c.what.strip() for c in table.columns)
        assert len({c.name for c in table.columns}) == len(table.columns)


def test_who_reads_cannot_write(path):
    record(path)
    connection = store.open_reading(path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("delete from runs")
    connection.close()


def test_a_copy_without_its_log_is_read_where_nothing_can_be_written(path, tmp_path, monkeypatch):
    """SQLite needs to write beside a file in WAL mode; where it cannot, nobody else writes."""
    record(path)
    real = sqlite3.connect

    def connect(name, *args, **kwargs):
        if "mode=ro" in str(name):
            connection = real(":memory:")
            connection.close()

            class Refused:
                def execute(self, sql):
                    raise sqlite3.OperationalError("unable to open database file")

                def close(self):
                    pass

            return Refused()
        return real(name, *args, **kwargs)

    monkeypatch.setattr(store.sqlite3, "connect", connect)
    connection = store.open_reading(path)
    assert connection.execute("select steps from runs").fetchall() == [(1,)]
    connection.close()


# --- older files ----------------------------------------------------------------------------------


def older(path: Path) -> bytes:
    """A workspace as a version before would have left it: without `runs.repeatable`."""
    record(path)
    connection = sqlite3.connect(path)
    for view in VIEWS:
        connection.execute(f"drop view {view.name}")
    connection.execute("alter table runs drop column repeatable")
    connection.execute(f"pragma user_version = {schema.VERSION}")
    connection.commit()
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    return path.read_bytes()


def add_repeatable(connection: sqlite3.Connection) -> None:
    connection.execute("alter table runs add column repeatable INTEGER")
    connection.execute("update runs set repeatable = steps")


@pytest.fixture
def version_2(monkeypatch):
    """As if this opstep were of the next version."""
    monkeypatch.setattr(store, "VERSION", schema.VERSION + 1)

    def migrate(connection, path, version):
        steps = {schema.VERSION: add_repeatable}
        migrations_migrate(connection, path, version, steps, schema.VERSION + 1)

    migrations_migrate = store.migrate
    monkeypatch.setattr(store, "migrate", migrate)


@pytest.mark.parametrize("opened", [store.open_writing, store.open_reading])
def test_an_older_file_is_brought_up_to_date(path, version_2, opened):
    before = older(path)
    connection = opened(path)
    assert connection.execute("pragma user_version").fetchone() == (schema.VERSION + 1,)
    assert connection.execute("select repeatable from runs").fetchall() == [(1,)]
    for view in VIEWS:
        connection.execute(f"select * from {view.name}").fetchall()
    connection.close()
    kept = path.with_name(f"runs.db.v{schema.VERSION}")
    copy = sqlite3.connect(kept)
    assert copy.execute("pragma user_version").fetchone() == (schema.VERSION,)
    assert copy.execute("select steps from runs").fetchall() == [(1,)]
    assert "repeatable" not in [c[1] for c in copy.execute("pragma table_info(runs)")]
    copy.close()
    assert len(kept.read_bytes()) == len(before)
    assert opened(path).close() is None, "once is enough"


def test_a_migration_that_fails_leaves_the_file_as_it_was(path):
    older(path)
    connection = sqlite3.connect(path, isolation_level=None)

    def fails(connection: sqlite3.Connection) -> None:
        add_repeatable(connection)
        connection.execute("insert into runs (id) values (1)")

    with pytest.raises(sqlite3.IntegrityError):
        store.migrate(connection, path, schema.VERSION, {schema.VERSION: fails}, schema.VERSION + 1)
    assert connection.execute("pragma user_version").fetchone() == (schema.VERSION,)
    assert "repeatable" not in [c[1] for c in connection.execute("pragma table_info(runs)")]
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_file_of_version_1(path):
    record(path)
    connection = sqlite3.connect(path)
    for view in VIEWS:
        connection.execute(f"drop view {view.name}")
    for column in (
        "kernels", "name", "command", "digest", "keep_inputs", "also", "parent", "parent_step",
    ):  # fmt: skip
        connection.execute(f"alter table runs drop column {column}")
    for column in ("format", "epoch", "batch", "rows", "seed", "metric", "score"):
        connection.execute(f"alter table checkpoints drop column {column}")
    connection.execute("alter table ops drop column fused_into")
    for table in ("settings", "buffers", "quantiles", "signed", "channels"):
        connection.execute(f"drop table {table}")
    connection.execute("pragma user_version = 1")
    connection.commit()
    connection.close()
    connection = store.open_writing(path)
    assert connection.execute("select steps, kernels from runs").fetchall() == [(1, None)]
    connection.close()
    with opstep.Workspace(path) as workspace:
        assert workspace.runs[0].switches["device"] == "cpu"
        assert "kernels" not in workspace.runs[0].switches
        run = workspace.run()
        assert (run.name, run.tags, run.keep_inputs) == (None, {}, 0)
        record(path)
        assert workspace.run().digest == run.digest


def test_every_version_that_was_ever_written_can_be_brought_up_to_date():
    assert sorted(store.MIGRATIONS) == list(range(1, schema.VERSION))


# --- tensors --------------------------------------------------------------------------------------

bits = st.binary(min_size=0, max_size=96)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), bits, st.booleans())
def test_tensors_come_back_bit_for_bit(name, content, square):
    """All dtypes, any bits: NaN payloads too."""
    kind = DTYPES[name].numpy
    size = np.dtype(kind).itemsize
    content = bytes(b & 1 for b in content) if name == "bool" else content
    array = np.frombuffer(content[: len(content) // size * size], kind)
    if square and array.size % 2 == 0:
        array = array.reshape(2, -1).T
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for table in schema.TABLES:
        create_table(connection, table)
    blobs.put_tensor(connection, "a", array, "saved")
    blobs.put_tensor(connection, "b", array.copy(), "saved")
    assert connection.execute("select count(distinct digest) from blobs").fetchone() == (1,)
    (row,) = connection.execute("select dtype, shape, nbytes from tensors where name = 'a'")
    assert row == (name, str(list(array.shape)), array.nbytes)
    connection.close()


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_parts(path, monkeypatch, name):
    monkeypatch.setattr(blobs, "PART", 10)
    kind = ml_dtypes.bfloat16 if name == "bf16" else DTYPES[name].numpy
    array = (np.arange(24).reshape(4, 6) % 2).astype(kind)
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        ws["a"] = array
        found = ws["a"]
    assert found.dtype == array.dtype and (found == array).all()
    connection = sqlite3.connect(path)
    parts = connection.execute("select count(*), max(length(data)) from blobs").fetchone()
    connection.close()
    assert parts == (-(-array.nbytes // 10), 10)


@pytest.mark.parametrize(
    "damage",
    [
        "update blobs set data = zeroblob(length(data))",
        "update blobs set data = substr(data, 2)",
        "update blobs set data = data || x'00'",
        "insert into blobs select digest, 1, data from blobs",
        "delete from blobs",
        "update tensors set dtype = 'f31'",
    ],
)
def test_damaged_bytes_are_told(path, damage):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        ws["a"] = np.arange(1, 9)
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with (
        opstep.Workspace(path) as ws,
        pytest.raises(InputError, match="a in the workspace are dam"),
    ):
        ws["a"]
