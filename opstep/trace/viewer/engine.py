"""Perfetto's own query engine on a trace.

    with Engine("run.pftrace") as engine:
        columns, rows = engine.query("select name, dur from slice order by dur desc limit 5")

The engine is the trace processor of the Perfetto UI, as WebAssembly under Node: a child process
that ends with this one, however this one ends.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from opstep.runtime.ir.errors import InputError, OpstepError
from opstep.runtime.ir.wording import SECONDS, Argument, Wording
from opstep.trace.viewer.files import find_node, readable_parts, web_files

LIMIT_S = 60.0
_START_S = 60.0
_CHUNK = 4 << 20  # bytes of the trace that are sent at once
_TABLES = "tables are slice, track, args, flow, counter, stats: see Perfetto's docs on PerfettoSQL"


class Answer(NamedTuple):
    """Of a query: names of the columns; rows of int, float, str, bytes and None."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class Engine:
    """The engine with one trace loaded; `left_out`: bytes of the file that are not a whole packet,
    where it was cut or damaged (`readable` says where). They are not loaded.

    Each query, and loading, may take `timeout` seconds; an engine that took longer is closed.
    Raises `InputError`: the file is absent, unreadable, empty, or no trace; the extra ``viewer`` is
    not installed; there is no Node.
    """

    def __init__(self, path: str | Path, timeout: float = LIMIT_S):
        if not timeout > 0:
            raise InputError(f"a time limit of {timeout:g} s leaves no time")
        self.path = Path(path)
        self.timeout = timeout
        self.readable = readable_parts(self.path)
        self.left_out = self.readable.nbytes - sum(b - a for a, b in self.readable.parts)
        folder, node = web_files(), find_node()
        self._errors: Any = tempfile.TemporaryFile()  # noqa: SIM115 - what the child says
        self._child = subprocess.Popen(
            [node, str(Path(__file__).with_suffix(".js")), str(folder)],
            stdin=subprocess.PIPE,  # its end ends the child
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for us
        )
        self._end = weakref.finalize(self, _end, self._child, self._errors)
        self._client: Any = None
        try:
            self._connect()
            self._load()
        except BaseException:
            self.close()
            raise

    def query(self, sql: str) -> Answer:
        """The answer to SQL, of the last statement where there are several. What statements make
        or change is in memory alone: never in the file.

        Raises `InputError`: the SQL is wrong, or takes longer than `timeout`.
        """
        from perfetto.common.exceptions import PerfettoException

        if self._client is None:
            raise InputError("the engine is closed")
        try:
            sql.encode()
        except UnicodeEncodeError:
            raise InputError("the SQL is not text that UTF-8 can hold") from None
        with self._limited("the query"):
            try:
                found = self._client.query(sql)
            except PerfettoException as error:
                raise InputError(_message(error), hint=_TABLES) from None
        width = found.column_count
        rows = found.cells.reshape(-1, width).tolist() if width else []
        return Answer(found.column_names, [tuple(row) for row in rows])

    def close(self) -> None:
        """Ends the child process; may be called again."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._end()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        from perfetto.trace_processor import TraceProcessor

        assert self._child.stdout is not None
        with self._limited("starting Perfetto's engine", _START_S):
            port = self._child.stdout.readline().strip()
            if not port:
                raise ConnectionError
            self._client = TraceProcessor(addr=f"127.0.0.1:{int(port)}")

    def _load(self) -> None:
        from perfetto.common.exceptions import PerfettoException

        try:
            with self._limited(f"loading {self.path}"):
                for chunk in self.readable.chunks(self.path, _CHUNK):
                    if error := self._client.http.parse(chunk).error:
                        raise PerfettoException(error)
                self._client.http.notify_eof()
                self._client.query("select 1")  # raises what notify_eof found
        except PerfettoException as error:
            raise InputError(f"{self.path} cannot be loaded: {_message(error)}") from None

    @contextmanager
    def _limited(self, what: str, seconds: float | None = None) -> Iterator[None]:
        """Ends the child when it takes too long: who waits for it goes on then."""
        from http.client import HTTPException

        seconds = self.timeout if seconds is None else seconds
        late = threading.Event()

        def end() -> None:
            late.set()
            self._child.kill()

        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (HTTPException, ConnectionError):
            words = "" if late.is_set() else self._last_words()
            self.close()
            if late.is_set():
                longer = (Argument("timeout", SECONDS), " gives it longer")
                hint = Wording.any_of(longer, ("conditions and LIMIT make it shorter",))
                raise InputError(
                    f"stopped: {what} took longer than {seconds:g} s", hint=hint
                ) from None
            raise OpstepError(f"{what}: Perfetto's engine ended{words}") from None
        except KeyboardInterrupt:
            self.close()  # the answer that is still to come belongs to no query
            raise
        finally:
            timer.cancel()

    def _last_words(self) -> str:
        """The last error that the child printed."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(1)
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        errors = [line.strip() for line in lines if "Error" in line]
        return f": {errors[0][:200]}" if errors else ""


def _end(child: subprocess.Popen[bytes], errors: Any) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout, errors):
        if stream is not None:
            stream.close()


def _message(error: Exception) -> str:
    """The engine's words: of a traceback through SQL, what it ends with."""
    lines = [line.strip() for line in str(error).strip().split("\n")]
    return next((line for line in reversed(lines) if line.strip("^ ")), "it does not say why")


# --- pieces of SQL --------------------------------------------------------------------------------


def argument(name: str) -> str:
    """A slice's argument, as `trace.arguments` calls it."""
    return f"extract_arg(arg_set_id, 'debug.{name}')"


def quoted(text: str) -> str:
    """A literal."""
    return "'" + text.replace("'", "''") + "'"
