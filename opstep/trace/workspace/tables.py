"""Creates the tables and views that the schema describes."""

from __future__ import annotations

import sqlite3

from opstep.trace.workspace.schema import Table
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
