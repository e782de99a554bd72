"""Creates the tables and views that the schema describes; workspaces of older versions are brought
up to date, one version after the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from opstep.trace.workspace.blobs import text_digest
from opstep.trace.workspace.schema import TABLES, VERSION, Table
from opstep.trace.workspace.transactions import transaction
from opstep.trace.workspace.views import VIEWS


def create_table(connection: sqlite3.Connection, table: Table) -> None:
    """The table and its indices, as the schema describes them."""
    single = table.key == ("id",)
    lines = []
    for column in table.columns:
        line = f'"{column.name}" {column.type}'
        if single and column.name == "id":
            line += " PRIMARY KEY"
        if column.references:
            line += f" REFERENCES {column.references}(id)"
        lines.append(line)
    if not single:
        lines.append(f"PRIMARY KEY ({', '.join(table.key)})")
    tail = "" if table.rowid else " WITHOUT ROWID"
    connection.execute(f"CREATE TABLE {table.name} ({', '.join(lines)}){tail}")
    for index in table.indices:
        columns = ", ".join(index.columns)
        where = f" WHERE {index.where}" if index.where else ""
        unique = "UNIQUE " if index.unique else ""
        name = f"{table.name}_by_{'_'.join(index.columns)}"
        connection.execute(f"CREATE {unique}INDEX {name} ON {table.name}({columns}){where}")


def create_views(connection: sqlite3.Connection) -> None:
    """The views, in place of those that are there."""
    import sqlite_utils

    database = sqlite_utils.Database(connection)
    for view in VIEWS:
        database.create_view(view.name, view.sql, replace=True)


def add_kernels(connection: sqlite3.Connection) -> None:
    """Runs of before were on the CPU."""
    connection.execute("alter table runs add column kernels TEXT")


def add_buffers(connection: sqlite3.Connection) -> None:
    """Of older runs it is not known what they held."""
    create_table(connection, next(table for table in TABLES if table.name == "buffers"))


def add_settings(connection: sqlite3.Connection) -> None:
    """Of older runs nobody noted these; their programs have a digest all the same."""
    for column in ("name TEXT", "command TEXT", "digest TEXT", "keep_inputs INTEGER"):
        connection.execute(f"alter table runs add column {column}")
    for id, text in connection.execute("select id, program from runs").fetchall():
        digest = text_digest(text or "")
        connection.execute("update runs set digest = ?, keep_inputs = 0 where id = ?", (digest, id))
    create_table(connection, next(table for table in TABLES if table.name == "settings"))


def add_buffers_and_settings(connection: sqlite3.Connection) -> None:
    add_buffers(connection)
    add_settings(connection)


def add_details(connection: sqlite3.Connection) -> None:
    """Of older runs nobody took these."""
    connection.execute("alter table runs add column also TEXT")
    for table in TABLES:
        if table.name in ("quantiles", "signed", "channels"):
            create_table(connection, table)


def add_training(connection: sqlite3.Connection) -> None:
    """No older run went on from a checkpoint of training."""
    for column in ("parent", "parent_step"):
        connection.execute(f"alter table runs add column {column} INTEGER")
    for column in ("format", "epoch", "batch", "rows", "seed"):
        connection.execute(f"alter table checkpoints add column {column} INTEGER")
    for column in ("metric TEXT", "score REAL"):
        connection.execute(f"alter table checkpoints add column {column}")


def add_fused(connection: sqlite3.Connection) -> None:
    """Each op of older runs was by itself."""
    connection.execute("alter table ops add column fused_into INTEGER")


# MIGRATIONS[v] changes a workspace of version v into one of version v + 1.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: add_kernels,
    2: add_buffers_and_settings,
    3: add_details,
    4: add_training,
    5: add_fused,
}


def migrate(
    connection: sqlite3.Connection,
    path: Path,
    version: int,
    migrations: Mapping[int, Callable[[sqlite3.Connection], None]] = MIGRATIONS,
    target: int = VERSION,
) -> None:
    """All steps from `version` on, in one transaction; the file as it was is kept beside it, as
    ``NAME.v1``.
    """
    backup = path.with_name(f"{path.name}.v{version}")
    if not backup.exists():
        with sqlite3.connect(backup) as copy:
            connection.backup(copy)
        copy.close()
    with transaction(connection):
        (version,) = connection.execute("pragma user_version").fetchone()  # another may have come
        while version < target:
            migrations[version](connection)
            version += 1
        create_views(connection)
        connection.execute(f"pragma user_version = {version}")
