"""Answers to questions in SQL while somebody looks at them: read once, then paged and sorted.

A thread reads the rows of an answer into a temporary database of its own, so that the first of them
can be shown while the rest are still read, a million do not fill the memory, any page is found at
once, and the workspace is free for its writers again as soon as all are read.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.browsing.json_fields import column_kinds, json_rows, problem_json
from opstep.trace.workspace.row_formats import write_file
from opstep.trace.workspace.store import PATIENCE_S
from opstep.trace.workspace.workspace import Workspace

MOST_ROWS = 1_000_000  # of an answer that is kept
PAGE = 200  # rows that come with the answer
_BATCH = 5_000
_ORDERS = 4  # sorted orders of an answer that are kept
_OPEN = 8  # answers that are kept for a client; the oldest one goes


class Result:
    """The answer to one question. All methods can be called from any thread."""

    def __init__(self, path: Path, text: str, most: int = MOST_ROWS):
        self.path = path
        self.text = text
        self.columns: list[str] = []
        self.kinds: list[str] = []
        self.count = 0
        self.more = False  # whether there are rows beyond `most`
        self.problem: dict[str, Any] | None = None
        self.done = False
        self._most = most
        self._began = time.monotonic()
        self._seconds = 0.0
        self._stop = threading.Event()
        self._news = threading.Condition()
        self._lock = threading.Lock()  # of the store
        # "" is a file of SQLite's own that goes with the connection; small ones stay in memory.
        self._store = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._store.execute("pragma journal_mode = off")
        self._orders: OrderedDict[tuple[int, bool], str] = OrderedDict()
        self._sorted = 0
        self._thread = threading.Thread(target=self._read, name="opstep-query", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """Seconds that it took, or has taken so far."""
        return self._seconds if self.done else time.monotonic() - self._began

    def progress(self) -> dict[str, Any]:
        """Its state, as JSON."""
        return {
            "columns": self.columns,
            "kinds": self.kinds,
            "count": self.count,
            "more": self.more,
            "done": self.done,
            "seconds": self.seconds,
            "problem": self.problem,
        }

    def wait(self, seconds: float, beyond: int = MOST_ROWS) -> None:
        """Until it is done, or has more than so many rows, or time is up."""
        with self._news:
            self._news.wait_for(lambda: self.done or self.count > beyond, seconds)

    def stop(self) -> None:
        """No more rows are read; those that are there stay."""
        self._stop.set()

    def close(self) -> None:
        """Gives everything back; nothing can be read any more."""
        self.stop()
        self._thread.join(5.0)
        with self._lock:
            self._store.close()

    # --- reading it ---

    def page(
        self, offset: int, limit: int, column: int | None = None, descending: bool = False
    ) -> list[tuple]:
        """Rows, in the order in which they came or by a column, nulls last. Sorted are answers that
        are done.
        """
        with self._lock:
            return list(self._select(offset, limit, column, descending))

    def each(
        self, offset: int, limit: int, column: int | None = None, descending: bool = False
    ) -> Iterator[tuple]:
        """`page`, in parts: for many rows."""
        end = offset + limit
        while offset < end:
            rows = self.page(offset, min(_BATCH, end - offset), column, descending)
            yield from rows
            if len(rows) < _BATCH:
                return
            offset += len(rows)

    def values(self, columns: list[int]) -> list[tuple]:
        """All rows of some columns."""
        self._check(columns)
        with self._lock:
            if not self.columns:
                return []
            names = ", ".join(f"c{k}" for k in columns)
            return self._store.execute(f"select {names} from answer order by rowid").fetchall()

    def field(self, row: int, column: int, sort: int | None, descending: bool) -> Any:
        """One field, whole."""
        self._check([column])
        rows = self.page(row, 1, sort, descending)
        if not rows:
            raise InputError("there is no such row any more", hint="run the query again")
        return rows[0][column]

    def _select(
        self, offset: int, limit: int, column: int | None, descending: bool
    ) -> Iterator[tuple]:
        if not self.columns:
            return iter(())
        span = (offset, offset + limit)
        if column is None or not self.done:
            text = "select * from answer where rowid > ? and rowid <= ? order by rowid"
            return self._store.execute(text, span)
        order = self._order(column, descending)
        text = f"select answer.* from {order} cross join answer on answer.rowid = {order}.at "
        text += f"where {order}.rowid > ? and {order}.rowid <= ? order by {order}.rowid"
        return self._store.execute(text, span)

    def _order(self, column: int, descending: bool) -> str:
        """A table of rows in another order: sorting once makes each page cheap."""
        self._check([column])
        key = (column, descending)
        if key in self._orders:
            self._orders.move_to_end(key)
            return self._orders[key]
        self._sorted += 1
        name = f"order{self._sorted}"
        way = "desc" if descending else "asc"
        self._store.execute(
            f"create temp table {name} as select rowid as at from answer "
            f"order by c{column} {way} nulls last, rowid"
        )
        self._orders[key] = name
        if len(self._orders) > _ORDERS:
            _, oldest = self._orders.popitem(last=False)
            self._store.execute(f"drop table {oldest}")
        return name

    def _check(self, columns: list[int]) -> None:
        for k in columns:
            if not 0 <= k < len(self.columns):
                raise InputError(f"the answer has no column {k}")

    # --- making it ---

    def _read(self) -> None:
        try:
            with Workspace(self.path, update=False, patience=PATIENCE_S) as ws:
                answer = ws.ask(self.text, timeout=None, stop=self._stop.is_set)
                with answer as (columns, rows):
                    self._begin(columns)
                    self._fill(rows)
        except OpstepError as error:
            self.problem = problem_json(error, self.text)
        except KeyboardInterrupt:  # how a connection that was interrupted ends
            self.problem = {"kind": "stopped", "message": "stopped", "hint": ""}
        except sqlite3.Error as error:  # of the store: the disk for temporary files is full
            message = f"the answer could not be kept: {error}"
            self.problem = {"kind": "wrong", "message": message, "hint": "ask for less: LIMIT"}
        finally:
            with self._news:
                self._seconds = time.monotonic() - self._began
                self.done = True
                self._news.notify_all()

    def _begin(self, columns: list[str]) -> None:
        if not columns:
            return
        names = ", ".join(f"c{k}" for k in range(len(columns)))
        with self._lock:
            self._store.execute(f"create table answer ({names})")
        with self._news:
            self.columns = columns
            self.kinds = [""] * len(columns)

    def _fill(self, rows: Iterator[tuple]) -> None:
        insert = f"insert into answer values ({', '.join('?' * len(self.columns))})"
        batch = PAGE  # the first ones soon
        while found := list(islice(rows, min(batch, self._most - self.count))):
            with self._lock:
                self._store.execute("begin")
                self._store.executemany(insert, found)
                self._store.execute("commit")
            with self._news:
                if not self.count:
                    self.kinds = column_kinds(found, len(self.columns))
                self.count += len(found)
                self._news.notify_all()
            batch = _BATCH
            if self._stop.is_set():
                self.problem = {"kind": "stopped", "message": "stopped", "hint": ""}
                return
        self.more = self.count >= self._most and next(rows, None) is not None


class Results:
    """The answers that a client has open, by the names that it gave them; and what else it may want
    to end.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, Result] = OrderedDict()
        self._running: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def ask(self, name: str, path: Path, text: str) -> Result:
        """Begins to read an answer, in place of one of the same name."""
        self.close(name)
        result = Result(path, text)
        with self._lock:
            self._open[name] = result
            oldest = list(self._open)[: max(0, len(self._open) - _OPEN)]
        for other in oldest:
            self.close(other)
        return result

    def get(self, name: str) -> Result:
        with self._lock:
            found = self._open.get(name)
            if found is None:
                raise InputError("this answer is gone", hint="run the query again")
            self._open.move_to_end(name)
            return found

    def close(self, name: str) -> None:
        with self._lock:
            found = self._open.pop(name, None)
        if found is not None:
            found.close()

    def stop(self, name: str) -> None:
        """Ends the reading of an answer, or a piece of work, of that name."""
        with self._lock:
            found, event = self._open.get(name), self._running.get(name)
        if found is not None:
            found.stop()
        if event is not None:
            event.set()

    def begin(self, name: str) -> threading.Event:
        """For work that `stop` can end: the event is set then."""
        event = threading.Event()
        with self._lock:
            self._running[name] = event
        return event

    def end(self, name: str, event: threading.Event) -> None:
        with self._lock:
            if self._running.get(name) is event:
                del self._running[name]


def first_page(result: Result) -> dict[str, Any]:
    """Its state with the first rows."""
    return result.progress() | {"rows": json_rows(result.page(0, PAGE))}


def export_answer(ws: Workspace, text: str, kind: str, target: Path, stop: threading.Event) -> int:
    """Asks anew, and writes all rows to a file, which is there whole or not at all; how many."""

    def until_stopped(rows: Iterator[tuple]) -> Iterator[tuple]:
        for row in rows:
            if stop.is_set():
                break
            yield row
        if stop.is_set():
            raise InputError("stopped: nothing was written")

    with ws.ask(text, timeout=None, stop=stop.is_set) as (columns, rows):
        return write_file(target, kind, columns, until_stopped(rows))
