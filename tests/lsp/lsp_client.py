"""An editor for tests: it talks to a language server over a pipe, as any editor does.

    with editor() as client:
        client.open('''
            graph main(x: f32[N]) -> f32[N] {
              y = re‹op›lu(x)
              return y
            }
            ''')
        client.hover("op")

Places are marks in the text, ``‹name›``, which are taken out before the server sees it. Params and
results are plain JSON. Every message that the server sends is checked against the protocol.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lsp.lsp_capabilities import CAPABILITIES

from opstep.editors.wire import Wire

PATIENCE_S = 60.0
_MARK = re.compile("‹([^›]*)›")


class ServerError(Exception):
    """An error response."""

    def __init__(self, code: int, message: str):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass
class Document:
    """A text as the editor has it, and where its marks are."""

    uri: str
    text: str
    marks: dict[str, int]
    version: int = 1

    def position(self, place: str | int) -> dict[str, int]:
        """A mark's position, or that of an offset."""
        offset = self.marks[place] if isinstance(place, str) else place
        before = self.text[:offset]
        line = before.count("\n")
        column = before[before.rfind("\n") + 1 :]
        return {"line": line, "character": len(column.encode("utf-16-le", "surrogatepass")) // 2}

    def offset(self, position: dict[str, int]) -> int:
        """The other way round."""
        lines = self.text.split("\n")
        start = sum(len(line) + 1 for line in lines[: position["line"]])
        data = lines[position["line"]].encode("utf-16-le", "surrogatepass")
        column = data[: 2 * position["character"]].decode("utf-16-le", "surrogatepass")
        return start + len(column)

    def range(self, start: str | int, end: str | int) -> dict[str, Any]:
        return {"start": self.position(start), "end": self.position(end)}

    def at(self, range: dict[str, Any]) -> str:
        """The text in a range."""
        return self.text[self.offset(range["start"]) : self.offset(range["end"])]

    def edited(self, edits: list[dict[str, Any]]) -> str:
        """The text with edits of the server carried out."""
        text = self.text
        spans = [(self.offset(e["range"]["start"]), self.offset(e["range"]["end"])) for e in edits]
        order = sorted(range(len(edits)), key=lambda k: (spans[k], k), reverse=True)
        limit = len(text) + 1
        for k in order:
            start, end = spans[k]
            assert start <= end <= limit, "edits overlap"
            text = text[:start] + edits[k]["newText"] + text[end:]
            limit = start
        return text


@dataclass
class Client:
    """An editor with a session."""

    wire: Wire
    initialized: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    diagnostics_of: dict[str, dict[str, Any]] = field(default_factory=dict)
    notifications: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._answers: dict[Any, dict[str, Any]] = {}
        self._sent: dict[Any, str] = {}
        self._next = 0
        self.current: Document | None = None
        threading.Thread(target=self._read, daemon=True).start()

    # --- messages ---------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            try:
                message = self.wire.read()
            except Exception:
                message = None
            self._inbox.put(message)
            if message is None:
                return

    def send(self, method: str, params: Any = None) -> int:
        """A request; its id."""
        self._next += 1
        self._sent[self._next] = method
        message = {"jsonrpc": "2.0", "id": self._next, "method": method}
        self.wire.write(message if params is None else {**message, "params": params})
        return self._next

    def notify(self, method: str, params: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        self.wire.write(message if params is None else {**message, "params": params})

    def request(self, method: str, params: Any = None) -> Any:
        """Sends a request and waits for its result; raises `ServerError`."""
        return self.answer(self.send(method, params))

    def answer(self, id: int) -> Any:
        """The result of a request that was sent."""
        self.wait(lambda: id in self._answers)
        found = self._answers.pop(id)
        if "error" in found:
            raise ServerError(found["error"]["code"], found["error"]["message"])
        return found.get("result")

    def wait(self, until: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
        """Takes messages until something is so."""
        end = time.monotonic() + seconds
        while not (found := until()):
            left = end - time.monotonic()
            assert left > 0, "the server said nothing for too long"
            try:
                message = self._inbox.get(timeout=left)
            except queue.Empty:
                continue
            assert message is not None, "the server has closed the connection"
            self._take(message)
        return found

    def pause(self, seconds: float) -> None:
        """Takes what comes in that time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                message = self._inbox.get(timeout=left)
            except queue.Empty:
                return
            assert message is not None, "the server has closed the connection"
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            checked_answer(self._sent.pop(message["id"], ""), message)
            if message["id"] is not None:  # else it is about a message that was none
                self._answers[message["id"]] = message
            return
        checked(method, message)
        if "id" in message:
            self.asked.append(message)
            self._reply(message)
        elif method == "textDocument/publishDiagnostics":
            self.diagnostics_of[message["params"]["uri"]] = message["params"]
        self.notifications.append(message)

    def _reply(self, message: dict[str, Any]) -> None:
        result: Any = None
        if message["method"] == "workspace/configuration":
            items = message["params"]["items"]
            result = [self.configuration.get(i.get("section"), None) for i in items]
        self.wire.write({"jsonrpc": "2.0", "id": message["id"], "result": result})

    # --- a session --------------------------------------------------------------------------------

    def initialize(
        self,
        folder: Path | None = None,
        options: dict[str, Any] | None = None,
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        params: dict[str, Any] = {
            "processId": os.getpid(),
            "rootUri": folder.as_uri() if folder else None,
            "capabilities": CAPABILITIES if capabilities is None else capabilities,
        }
        if folder:
            params["workspaceFolders"] = [{"uri": folder.as_uri(), "name": folder.name}]
        if options is not None:
            params["initializationOptions"] = options
        self.initialized = self.request("initialize", params)
        self.notify("initialized", {})

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server offers."""
        return self.initialized["capabilities"]

    def shutdown(self) -> None:
        self.request("shutdown")
        self.notify("exit")

    # --- texts ------------------------------------------------------------------------------------

    def open(self, text: str, uri: str = "file:///programs/model.opg") -> Document:
        """Opens a text with marks; it is the one that later calls mean."""
        document = marked(text, uri)
        self.documents[uri] = self.current = document
        self.diagnostics_of.pop(uri, None)
        item = {"uri": uri, "languageId": "opg", "version": 1, "text": document.text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return document

    def change(self, start: str | int, end: str | int, new: str, uri: str | None = None) -> None:
        """Replaces a part of a text, as typing does."""
        document = self._document(uri)
        begin, stop = (document.marks[p] if isinstance(p, str) else p for p in (start, end))
        change = {"range": document.range(begin, stop), "text": new}
        document.text = document.text[:begin] + new + document.text[stop:]
        moved = len(new) - (stop - begin)
        document.marks = {n: o + moved if o >= stop else o for n, o in document.marks.items()}
        self._changed(document, [change])

    def rewrite(self, text: str, uri: str | None = None) -> None:
        """Replaces the whole text, and its marks."""
        document = self._document(uri)
        new = marked(text, document.uri)
        document.text, document.marks = new.text, new.marks
        self._changed(document, [{"text": document.text}])

    def _changed(self, document: Document, changes: list[dict[str, Any]]) -> None:
        document.version += 1
        identifier = {"uri": document.uri, "version": document.version}
        params = {"textDocument": identifier, "contentChanges": changes}
        self.notify("textDocument/didChange", params)

    def close(self, uri: str | None = None) -> None:
        document = self._document(uri)
        del self.documents[document.uri]
        self.notify("textDocument/didClose", {"textDocument": {"uri": document.uri}})

    def _document(self, uri: str | None) -> Document:
        found = self.documents[uri] if uri is not None else self.current
        assert found is not None
        return found

    def diagnostics(self, uri: str | None = None) -> list[dict[str, Any]]:
        """The messages about the present text, once they are there."""
        document = self._document(uri)

        def present() -> bool:
            found = self.diagnostics_of.get(document.uri)
            return found is not None and found.get("version") == document.version

        self.wait(present)
        return self.diagnostics_of[document.uri]["diagnostics"]

    # --- questions about a place ------------------------------------------------------------------

    def place(self, mark: str | int) -> tuple[Document, dict[str, int]]:
        """Where a mark is: in the current text, or else in any."""
        assert self.current is not None
        if isinstance(mark, int) or mark in self.current.marks:
            return self.current, self.current.position(mark)
        found = next(d for d in self.documents.values() if mark in d.marks)
        return found, found.position(mark)

    def ask(self, method: str, mark: str | int, **more: Any) -> Any:
        """A request about a mark: ``textDocument/METHOD``, or a method that has a slash."""
        document, position = self.place(mark)
        params = {"textDocument": {"uri": document.uri}, "position": position, **more}
        return self.request(method if "/" in method else f"textDocument/{method}", params)

    def about(self, method: str, uri: str | None = None, **more: Any) -> Any:
        """A request about a whole text."""
        identifier = {"uri": self._document(uri).uri}
        name = method if "/" in method else f"textDocument/{method}"
        return self.request(name, {"textDocument": identifier, **more})

    def hover(self, mark: str | int) -> str | None:
        """The hover's text."""
        found = self.ask("hover", mark)
        return None if found is None else found["contents"]["value"]

    def definition(self, mark: str | int) -> Any:
        return self.ask("definition", mark)

    def references(self, mark: str | int, declaration: bool = True) -> Any:
        return self.ask("references", mark, context={"includeDeclaration": declaration})

    def completion(self, mark: str | int, **more: Any) -> list[dict[str, Any]]:
        """The items proposed."""
        found = self.ask("completion", mark, **more)
        return (found["items"] if isinstance(found, dict) else found) or []

    def actions(
        self, start: str | int, end: str | int | None = None, only: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """Code actions at a place, with the diagnostics that are there."""
        document, begin = self.place(start)
        where = {"start": begin, "end": begin if end is None else self.place(end)[1]}
        touching = [d for d in self.diagnostics(document.uri) if _touch(d["range"], where)]
        context: dict[str, Any] = {"diagnostics": touching}
        if only is not None:
            context["only"] = only
        return self.about("codeAction", document.uri, range=where, context=context) or []

    def applied(self, action: dict[str, Any]) -> str:
        """The current text with an action's edit carried out."""
        document = self._document(None)
        edit = action["edit"]
        edits = (edit.get("changes") or {}).get(document.uri, [])
        for change in edit.get("documentChanges") or []:
            if change["textDocument"]["uri"] == document.uri:
                edits = edits + change["edits"]
        return document.edited(edits)


def marked(text: str, uri: str) -> Document:
    """A text without its marks and without the indentation that all lines share."""
    if text.startswith("\n"):
        text = textwrap.dedent(text[1:])
    marks: dict[str, int] = {}
    clean = ""
    last = 0
    for match in _MARK.finditer(text):
        clean += text[last : match.start()]
        marks[match[1]] = len(clean)
        last = match.end()
    return Document(uri, clean + text[last:], marks)


def _touch(a: dict[str, Any], b: dict[str, Any]) -> bool:
    def key(p: dict[str, int]) -> tuple[int, int]:
        return p["line"], p["character"]

    return key(a["start"]) <= key(b["end"]) and key(b["start"]) <= key(a["end"])


# --- what the protocol says of messages -----------------------------------------------------------


@cache
def _converter() -> Any:
    from lsprotocol import converters

    return converters.get_converter()


def checked(method: str, message: dict[str, Any]) -> None:
    """Holds a notification or request of the server against the protocol."""
    from lsprotocol import types

    assert message["jsonrpc"] == "2.0"
    if method in types.METHOD_TO_TYPES:
        _converter().structure(message, types.METHOD_TO_TYPES[method][0])
    else:
        assert method.startswith("opstep/"), f"{method} is not of the protocol"


def checked_answer(method: str, message: dict[str, Any]) -> None:
    """The same for an answer."""
    from lsprotocol import types

    assert message["jsonrpc"] == "2.0"
    if "error" in message:
        assert isinstance(message["error"]["code"], int) and message["error"]["message"]
    elif method in types.METHOD_TO_TYPES:
        _converter().structure(message, types.METHOD_TO_TYPES[method][1])


# --- servers --------------------------------------------------------------------------------------


def pipe() -> tuple[Any, Any]:
    """A reading and a writing end."""
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb"), os.fdopen(writer, "wb")


@contextmanager
def editor(
    folder: Path | None = None,
    options: dict[str, Any] | None = None,
    capabilities: dict[str, Any] | None = None,
) -> Iterator[Client]:
    """A client with a server in this process, greeted. What the server logs must be nothing."""
    from opstep.lsp.server import serve

    to_server, from_client = pipe()
    to_client, from_server = pipe()
    logged: list[str] = []
    server = threading.Thread(
        target=serve, args=(Wire(to_server, from_server, 1 << 28), logged.append), daemon=True
    )
    server.start()
    client = Client(Wire(to_client, from_client, 1 << 28))
    client.initialize(folder, options, capabilities)
    try:
        yield client
        client.shutdown()
    finally:
        from_client.close()
        server.join(PATIENCE_S)
        from_server.close()
    assert not server.is_alive()
    assert logged == []


@contextmanager
def started(*arguments: str, folder: Path | None = None) -> Iterator[tuple[Client, Any]]:
    """A client with ``opstep lsp`` in a process of its own, greeted; and the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "lsp", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    client = Client(Wire(process.stdout, process.stdin, 1 << 28))  # pyright: ignore
    client.initialize(folder)
    try:
        yield client, process
    finally:
        process.kill()
        process.wait()
