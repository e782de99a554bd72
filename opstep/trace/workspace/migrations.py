"""Creates the tables and views that the schema describes; workspaces of older versions are brought
up to date, one version after the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
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


def _add(connection: sqlite3.Connection, version: int) -> None:
    """What version + 1 has and this one has not: columns, null in older rows, and tables."""
    for table, columns in COLUMNS.get(version, {}).items():
        for column in columns:
            connection.execute(f"alter table {table} add column {column}")
    for table in TABLES:
        if table.name in NEW_TABLES.get(version, ()):
            create_table(connection, table)
    if version == 2:  # older runs kept no inputs; their programs have a digest all the same
        for id, text in connection.execute("select id, program from runs").fetchall():
            row = (text_digest(text or ""), id)
            connection.execute("update runs set digest = ?, keep_inputs = 0 where id = ?", row)


# By version, the columns and tables that the next one added.
COLUMNS = {
    1: {"runs": ("kernels TEXT",)},
    2: {"runs": ("name TEXT", "command TEXT", "digest TEXT", "keep_inputs INTEGER")},
    3: {"runs": ("also TEXT",)},
    4: {
        "runs": ("parent INTEGER", "parent_step INTEGER"),
        "checkpoints": (
            *(f"{name} INTEGER" for name in ("format", "epoch", "batch", "rows", "seed")),
            *("metric TEXT", "score REAL"),
        ),
    },
    5: {"ops": ("fused_into INTEGER",)},
}
NEW_TABLES = {2: ("buffers", "settings"), 3: ("quantiles", "signed", "channels")}
# MIGRATIONS[v] changes a workspace of version v into one of version v + 1.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    version: partial(_add, version=version) for version in COLUMNS
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
