"""Questions in SQL, from people: they only read unless they may write, and they come to an end."""

from __future__ import annotations

import re
import sqlite3
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Source, Span
from opstep.runtime.ir.wording import SECONDS, Argument, Wording

LIMIT_S = 30.0  # that a question may take
_INSTRUCTIONS = 20_000  # of SQLite's machine between two looks at the clock: well below 1 ms

# What reading needs. All other actions write, or reach other files (ATTACH).
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_CREATED = [f"CREATE {what}" for what in ("INDEX", "TABLE", "TRIGGER", "VIEW")]
_CHANGED = ["INSERT", "UPDATE", "DELETE", "ALTER TABLE", "ANALYZE", "REINDEX"]
_CHANGED += [*_CREATED, *(name.replace("CREATE", "DROP") for name in _CREATED)]
_WRITES = {getattr(sqlite3, f"SQLITE_{name.replace(' ', '_')}"): name for name in _CHANGED} | {
    getattr(sqlite3, f"SQLITE_{name.replace(' ', '_TEMP_')}"): name for name in _CREATED
}
_NEVER = {
    sqlite3.SQLITE_ATTACH: "ATTACH reaches other files",
    sqlite3.SQLITE_DETACH: "DETACH reaches other files",
    sqlite3.SQLITE_TRANSACTION: "each statement is a transaction of its own",
    sqlite3.SQLITE_SAVEPOINT: "each statement is a transaction of its own",
}
_LOOKS = {
    "application_id", "collation_list", "compile_options", "database_list", "foreign_key_check",
    "foreign_key_list", "freelist_count", "function_list", "index_info", "index_list",
    "index_xinfo", "integrity_check", "journal_mode", "page_count", "page_size", "pragma_list",
    "quick_check", "table_info", "table_list", "table_xinfo", "user_version",
}  # fmt: skip
_WITH_NAME = {n for n in _LOOKS if n.endswith(("_info", "_xinfo", "_list", "_check"))}


class Refused(InputError):
    """A statement that would do more than read. `writes`: it may, where writing is allowed."""

    def __init__(self, what: str, writes: bool):
        allowed = Wording("allow it: ", Argument("write", True))
        super().__init__(f"not allowed: {what}", hint=allowed if writes else "")
        self.writes = writes


class Ended(InputError):
    """A statement that took too long, or that nobody waits for any more."""


class Answer(NamedTuple):
    """An answer in SQL. `rows` are tuples in the order of `columns`."""

    columns: list[str]
    rows: list[tuple]

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by the names of the columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@contextmanager
def ask(
    connection: sqlite3.Connection,
    text: str,
    parameters: Sequence[Any] | Mapping[str, Any] = (),
    *,
    write: bool = False,
    seconds: float | None = LIMIT_S,
    stop: Callable[[], bool] | None = None,
) -> Iterator[tuple[list[str], Iterator[tuple]]]:
    """Runs one statement: the names of its columns, and its rows as they are found.

    Raises `InputError` where the text is wrong (with its place), where it would write and `write`
    is False (`Refused`), where it reaches outside the file, and after `seconds` (None: no limit) or
    once `stop`, which is asked now and then, says so (`Ended`). Ctrl-C ends it as well.
    """
    guard = _Guard(write, seconds, stop)
    connection.set_authorizer(guard.authorize)
    connection.set_progress_handler(guard.look, _INSTRUCTIONS)
    rows: Generator[tuple, None, None] | None = None
    try:
        with _explained(connection, text, guard):
            cursor = connection.execute(text, parameters)
            if cursor.description is None and not _words(text):
                raise InputError("there is no SQL in it", hint="such as: select * from runs")
        rows = _rows(cursor, connection, text, guard)
        yield _unique([c[0] for c in cursor.description or ()]), rows
    finally:
        if rows is not None:
            rows.close()  # before the connection is
            cursor.close()
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)


def _unique(columns: list[str]) -> list[str]:
    """``id``, ``id``: ``id``, ``id:1``, as SQLite calls them in a view."""
    found: list[str] = []
    for name in columns:
        again, unique = 0, name
        while unique in found:
            again += 1
            unique = f"{name}:{again}"
        found.append(unique)
    return found


def _rows(
    cursor: sqlite3.Cursor, connection, text: str, guard: _Guard
) -> Generator[tuple, None, None]:
    with _explained(connection, text, guard):
        yield from cursor


class _Guard:
    """Callbacks of SQLite while it prepares a statement and while it runs it."""

    def __init__(self, write: bool, seconds: float | None, stop: Callable[[], bool] | None):
        self.write = write
        self.stop = stop
        self.stopped = False
        self.seconds = seconds
        self.ends = None if seconds is None else time.monotonic() + seconds
        self.refused = ""  # what was not allowed
        self.writes = False  # whether it is, where one may write
        self.late = False

    def authorize(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        reason = self._reason(action, first, second)
        if reason is None:
            return sqlite3.SQLITE_OK
        if not self.refused:
            self.refused, self.writes = reason, action in _WRITES
        return sqlite3.SQLITE_DENY

    def _reason(self, action: int, first: str | None, second: str | None) -> str | None:
        if action in _READS:
            return None
        if action == sqlite3.SQLITE_FUNCTION:
            return "it would load code" if second == "load_extension" else None
        if action == sqlite3.SQLITE_PRAGMA:
            name = (first or "").lower()
            if name in _LOOKS and (second is None or name in _WITH_NAME):
                return None
            return f"PRAGMA {name} changes settings"
        if action == sqlite3.SQLITE_UPDATE and first == "sqlite_master":
            return None  # functions that give tables; SQLite itself refuses real changes
        if action in _WRITES:
            return None if self.write else f"it would write ({_WRITES[action]} {first or ''})"
        return _NEVER.get(action, "it does more than read")

    def look(self) -> int:
        """Called now and then while a statement runs; 1 ends it."""
        self.late = self.ends is not None and time.monotonic() > self.ends
        self.stopped = self.stop is not None and self.stop()
        return int(self.late or self.stopped)


@contextmanager
def _explained(connection: sqlite3.Connection, text: str, guard: _Guard) -> Iterator[None]:
    """Turns SQLite's errors into messages about the text."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, UnicodeEncodeError, OverflowError) as error:
        message = str(error).removesuffix(".")
        if guard.refused:
            raise Refused(guard.refused.strip(), guard.writes) from None
        if guard.stopped:
            raise Ended("stopped") from None
        if guard.late:
            longer = (Argument("timeout", SECONDS), " gives it longer")
            hint = Wording.any_of(longer, ("LIMIT and an index make it shorter",))
            text = f"stopped: it took longer than {guard.seconds:g} s"
            raise Ended(text, hint=hint) from None
        if message == "interrupted":  # the handler of a signal ended it
            raise KeyboardInterrupt from None
        if "one statement at a time" in message:
            raise InputError("these are several statements; give one") from None
        if getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":
            connection.set_authorizer(None)
            raise _about(connection, text, message) from None
        raise InputError(f"SQLite cannot answer: {message}") from None


# --- where an error is ----------------------------------------------------------------------------


def _about(connection: sqlite3.Connection, text: str, message: str) -> InputError:
    """The error with its place in the text, as far as SQLite names it, and a hint."""
    span, hint = None, ""
    if found := re.fullmatch(r'near "(.*)": syntax error', message, re.DOTALL):
        span = _unexpected(connection, text, found[1], message)
    elif message == "incomplete input":
        span = Span(len(text.rstrip()), len(text.rstrip()))
    elif found := re.fullmatch(r'unrecognized token: "(.*)"?', message, re.DOTALL):
        span = _word(text, found[1].rstrip('"'))
    elif found := re.fullmatch(r"(?:no such|ambiguous) (\w+)(?: name)?: (.*)", message):
        kind, name = found.groups()
        span = _word(text, name)
        hint = _hint(connection, kind, name.rpartition(".")[2])
    source = Source(text, "sql")
    return InputError(message, span=span, source=source if span else None, hint=hint)


def _unexpected(connection: sqlite3.Connection, text: str, token: str, message: str) -> Span | None:
    """The place of the token that SQLite stumbles over: what stands before it can be parsed."""

    def stumbles(end: int) -> bool:
        try:
            connection.execute(f"explain {text[:end]}").close()
        except (sqlite3.Error, sqlite3.Warning) as error:
            return str(error) == message
        return False

    ends = [found.end() for found in re.finditer(re.escape(token), text)]
    first = bisect_left(ends, True, key=stumbles)
    return Span(ends[first] - len(token), ends[first]) if first < len(ends) else None


def _word(text: str, word: str) -> Span | None:
    found = re.search(rf"(?<![\w']){re.escape(word)}(?![\w'])", text, re.IGNORECASE)
    found = found or re.search(re.escape(word), text, re.IGNORECASE)
    return Span(*found.span()) if found else None


def _hint(connection: sqlite3.Connection, kind: str, name: str) -> str:
    """The nearest names, or all tables."""
    tables = tables_of(connection)
    if kind == "table":
        return did_you_mean(name, tables) or f"there are: {', '.join(tables)}"
    if kind != "column":
        return ""
    names: dict[str, None] = {}
    with suppress(sqlite3.Error):
        for table in tables:
            names |= dict.fromkeys(columns_of(connection, table))
    return did_you_mean(name, names)


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """Tables and views."""
    found = connection.execute(
        "select name from sqlite_schema where type in ('table', 'view') "
        "and name not like 'sqlite_%' order by type, name"
    )
    return [name for (name,) in found]


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    found = connection.execute("select name from pragma_table_info(?)", (table,))
    return [name for (name,) in found]


def quoted(name: str) -> str:
    """A name as SQL writes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _words(text: str) -> bool:
    """Whether there is more than comments in it."""
    bare = re.sub(r"/\*.*?(\*/|$)|--[^\n]*", "", text, flags=re.DOTALL)
    return bool(bare.strip(" \t\r\n;"))
