"""Damage of a workspace's rows: somebody else, or a failing disk, has changed them.

SQLite notices most damage itself. What it cannot notice is a row that says what opstep never wrote.
It is looked for when reading has failed already: only then it is worth to read everything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from math import prod
from pathlib import Path

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DTYPES
from opstep.trace.workspace.reading import about_file, parsed
from opstep.trace.workspace.schema import DETAILS, TABLES, Column, Table
from opstep.trace.workspace.store import open_reading

_TYPES = {
    "INTEGER": ("integer",),
    "REAL": ("real", "integer"),
    "TEXT": ("text",),
    "BLOB": ("blob",),
    "": ("real", "integer"),
}
_BELONGS = ("results", "executions", "stats", *DETAILS)  # to a row of `ops`


def damage(path: Path) -> InputError | None:
    """The first thing that is wrong with a workspace's rows, as an error to raise."""
    with closing(open_reading(path)) as connection, about_file(connection):
        found = next(_wrong(connection), None)
    if found is None:
        return None
    hint = "opstep ws FILE sql shows what can still be read; prune removes runs"
    return InputError(f"{path} is damaged: {found}", hint=hint)


def _wrong(connection: sqlite3.Connection) -> Iterator[str]:
    for (message,) in connection.execute("pragma quick_check(1)"):
        if message != "ok":
            yield message.removeprefix("*** in database main ***").strip()
    for table in TABLES:
        yield from _columns(connection, table)
    for table in _BELONGS:
        query = f"select run from {table} left join ops using (run, op) where ops.op is null"
        if row := connection.execute(query).fetchone():
            yield f"{table} of run {row[0]} belong to no op"
    query = "select run from stats left join results using (run, op, result) where name is null"
    if row := connection.execute(query).fetchone():
        yield f"stats of run {row[0]} belong to no result"
    query = "select run from tensors where run is not null and run not in (select id from runs)"
    if row := connection.execute(query).fetchone():
        yield f"tensors belong to run {row[0]}, which is not there"
    yield from _tensors(connection)


def _columns(connection: sqlite3.Connection, table: Table) -> Iterator[str]:
    """Values of another type than the schema says."""
    for column in table.columns:
        allowed = [f"'{t}'" for t in _TYPES[column.type]]
        if table.name == "settings" and column.name == "value":
            allowed.append("'text'")
        if not column.required and column.name not in table.key:
            allowed.append("'null'")
        wrong = f'typeof("{column.name}") not in ({", ".join(allowed)})'
        if shape := _json_type(column):
            is_it = f"json_type(\"{column.name}\") = '{shape}'"
            is_it = f'case when json_valid("{column.name}") then {is_it} else 0 end'
            wrong += f' or ("{column.name}" is not null and not {is_it})'
        query = f"select count(*) from {table.name} where {wrong}"
        (count,) = connection.execute(query).fetchone()
        if count:
            yield f"{table.name}.{column.name} is not what it should be in {count:,} rows"


def _json_type(column: Column) -> str:
    if not column.what.startswith("JSON"):
        return ""
    return "object" if column.name == "attrs" else "array"


def _tensors(connection: sqlite3.Connection) -> Iterator[str]:
    """Tensors whose size does not fit their type."""
    for name, dtype, text, nbytes in connection.execute(
        "select name, dtype, shape, nbytes from tensors"
    ):
        shape = parsed(text)
        if dtype not in DTYPES or not all(type(dim) is int and dim >= 0 for dim in shape):
            yield f"the tensor {name} has no type"
        elif nbytes != prod(shape) * DTYPES[dtype].numpy.itemsize:
            yield f"the tensor {name} has {nbytes:,} bytes, which does not fit {dtype}{shape}"
