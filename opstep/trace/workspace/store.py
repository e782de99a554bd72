"""The file of a workspace: made, opened for writing or for reading, brought up to date.

It is an SQLite file in WAL mode: readers never wait for a writer, and a process that is killed
leaves what it had committed. What is wrong with a file is said before anything runs
(`FileProblem`).
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.blobs import text_digest
from opstep.trace.workspace.functions import add_functions
from opstep.trace.workspace.schema import APPLICATION, DETAILS, TABLES, VERSION, Table
from opstep.trace.workspace.transactions import transaction
from opstep.trace.workspace.views import VIEWS
from opstep.trace.writer import MAKE_ROOM, NO_ROOM, no_room

BUSY_S = 30.0  # a writer waits so long for another one's transaction
PATIENCE_S = 2.0  # and a viewer: somebody sits in front of a screen
_RECOVER = "`sqlite3 FILE .recover` may save what it holds"


class FileProblem(InputError):
    """Why a file cannot be used as a workspace.

    `kind`: absent, folder, foreign, unreadable, empty, older, newer, locked, full or damaged.
    """

    def __init__(self, kind: str, message: str, hint: str = ""):
        super().__init__(message, hint=hint)
        self.kind = kind


def open_writing(path: Path, patience: float | None = None) -> sqlite3.Connection:
    """A connection that may write, in autocommit mode; the file is made where there is none.

    `patience`: seconds to wait for another writer's transaction, if not `BUSY_S`. Raises
    `FileProblem` where that cannot be, or the file is not a workspace.
    """
    _check_file(path)
    if not path.parent.is_dir():
        raise FileProblem("absent", f"{path}: there is no folder {path.parent}")
    with explained(path):
        seconds = BUSY_S if patience is None else patience
        connection = sqlite3.connect(
            path, timeout=seconds, isolation_level=None, check_same_thread=False
        )
        try:
            add_functions(connection)
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """`open_writing` for a while. What SQLite raises in it becomes a `FileProblem`."""
    connection = open_writing(path)
    try:
        with explained(path):
            yield connection
    finally:
        connection.close()


def open_reading(
    path: Path, *, update: bool = True, patience: float | None = None
) -> sqlite3.Connection:
    """A connection that cannot write. Raises `FileProblem` where the file is not a workspace.

    One of an older version is brought up to date first; it is left as it is, and complained of,
    where `update` is False. `patience`: seconds to wait for a file that is locked, if
    not `BUSY_S`.
    """
    try:
        exists = path.exists()
    except OSError as error:  # such as a name that is too long
        raise FileProblem("unreadable", f"{path} cannot be read: {error.strerror}") from None
    if not exists:
        hint = f"opstep run FILE --workspace {path} makes one"
        raise FileProblem("absent", f"there is no file {path}", hint)
    _check_file(path)
    with explained(path):
        connection = _connect_reading(path, BUSY_S if patience is None else patience)
        try:
            version = _version(connection, path)
            if version == VERSION:
                _check_tables(connection, path)
        except BaseException:
            connection.close()
            raise
    if version == 0:
        connection.close()
        raise FileProblem("empty", f"{path} is empty: nothing was recorded in it")
    if version < VERSION:
        connection.close()
        if not update:
            raise FileProblem(
                "older",
                f"{path} was written by an older opstep (version {version} of the workspace; this "
                f"one knows {VERSION})",
                f"`opstep ws {path}` brings it up to date, and keeps a copy as it was",
            )
        open_writing(path).close()  # brings it up to date
        return open_reading(path)
    return connection


def remove_empty_log(path: Path) -> None:
    """Removes the empty log that a reader leaves beside a file, where nobody else has it open: the
    last connection that may write does so when it closes.
    """
    log = path.with_name(path.name + "-wal")
    with suppress(OSError, sqlite3.Error):
        if log.stat().st_size == 0:
            name = quote(str(path.absolute()))
            with closing(sqlite3.connect(f"file:{name}?mode=rw", uri=True, timeout=0)) as last:
                last.execute("select 1 from sqlite_master").fetchone()


def file_bytes(path: Path) -> int:
    """Of the file, and of what was written beside it and is not in it yet."""
    paths = (path, path.with_name(path.name + "-wal"))
    return sum(p.stat().st_size for p in paths if p.exists())


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise FileProblem("folder", f"{path} is a folder; a workspace is a file")
    if path.exists() and not path.is_file():  # a pipe would make us wait
        raise FileProblem("foreign", f"{path} is not a file that SQLite could keep a workspace in")
    # SQLite itself says which file is not its own. To open and close one here would drop the
    # locks of this process's other connections (https://www.sqlite.org/howtocorrupt.html, 2.2):
    # another process then takes itself for the last, removes the log, and what we write is lost
    if path.exists() and not os.access(path, os.R_OK):
        raise FileProblem("unreadable", f"{path} cannot be read: {os.strerror(errno.EACCES)}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Says what SQLite's errors mean for this file."""
    try:
        yield
    except UnicodeDecodeError:  # a name in the schema
        raise FileProblem("damaged", f"{path}: it is damaged", _RECOVER) from None
    except sqlite3.Error as error:
        text, hint, kind = str(error), "", "unreadable"
        if "locked" in text:
            kind, text = "locked", "another process is writing to it and does not end"
            hint = "wait for it, or record into another file"
        elif no_room(error):
            kind, text, hint = "full", NO_ROOM, MAKE_ROOM
        elif "readonly" in text or "unable to open" in text:
            text = "it cannot be written" if os.access(path.parent, os.R_OK) else text
            hint = "its folder must be writable: SQLite keeps two files beside it"
        elif "not a database" in text:
            kind = "foreign"
            text = "it is not a workspace: it is not an SQLite file, or is damaged at its beginning"
        elif "malformed" in text:
            kind, text = "damaged", f"it is damaged ({text})"
            hint = _RECOVER
        raise FileProblem(kind, f"{path}: {text}", hint) from None


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of its schema, 0 where it has none yet. Raises `FileProblem` for other files."""
    # one statement: between two another process may make it a workspace
    application, version, tables = connection.execute(
        "select application_id, user_version, (select count(*) from sqlite_master) "
        "from pragma_application_id, pragma_user_version"
    ).fetchone()
    if application != APPLICATION and (tables or application):
        raise FileProblem(
            "foreign",
            f"{path} is an SQLite file of something else, not a workspace",
            "nothing was changed in it; give another file",
        )
    if version > VERSION:
        raise FileProblem(
            "newer",
            f"{path} was written by a newer opstep (version {version} of the workspace; this one "
            f"knows {VERSION})",
            "nothing was changed in it; update opstep",
        )
    return version


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raises `FileProblem` where one of our tables is missing, or something else: what stands for
    rows that are worked out, such as a view, may never come to an end.
    """
    rows = "select name, type = 'table' and sql like 'create table%' from sqlite_master"
    tables = {name: bool(plain) for name, plain in connection.execute(rows)}
    for table in TABLES:
        if not tables.get(table.name):
            what = "is not a table" if table.name in tables else "is missing"
            raise FileProblem("damaged", f"{path}: it is damaged ({table.name} {what})", _RECOVER)


# --- opening --------------------------------------------------------------------------------------


def _connect_reading(path: Path, patience: float) -> sqlite3.Connection:
    name = quote(str(path.absolute()))
    connection = sqlite3.connect(
        f"file:{name}?mode=ro", uri=True, timeout=patience, check_same_thread=False
    )
    try:
        connection.execute("select 1 from sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        log = path.with_name(path.name + "-wal")
        if "unable to open" not in str(error) or (log.exists() and log.stat().st_size):
            raise
        # a folder that cannot be written holds no file to share with writers: there are none
        connection = sqlite3.connect(f"file:{name}?immutable=1", uri=True, check_same_thread=False)
    connection.execute("pragma query_only = 1")
    add_functions(connection)
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Checks a file that is to be written, and makes it what it has to be."""
    version = _version(connection, path)
    connection.execute("pragma page_size = 8192")
    _use_wal(connection)
    connection.execute("pragma synchronous = normal")
    if version == VERSION:
        with transaction(connection):  # a file that cannot be written is reported now
            connection.execute(f"pragma user_version = {VERSION}")
        return
    if version:
        migrate(connection, path, version)
        return
    with transaction(connection):
        if _version(connection, path) == 0:  # another process may have come first
            _create(connection)


def _use_wal(connection: sqlite3.Connection) -> None:
    """WAL mode. While another process turns to it too, SQLite refuses at once and does not wait."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"pragma application_id = {APPLICATION}")
    for table in TABLES:
        create_table(connection, table)
    create_views(connection)
    connection.execute(f"pragma user_version = {VERSION}")


# --- tables, and workspaces of older versions -----------------------------------------------------


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
    """Adds what version + 1 has and this one has not: columns, null in older rows, and tables."""
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
NEW_TABLES = {2: ("buffers", "settings"), 3: DETAILS}
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
