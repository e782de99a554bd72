"""Sessions: one client, from its first message until it is gone.

A thread reads messages; a loop answers them, one after the other, and checks texts when nothing is
to be answered. Features that take long run in threads beside it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInternalError
from pygls.lsp.server import LanguageServer

from opstep.editors import server
from opstep.editors.server import Log, standard_streams, streams_of
from opstep.editors.wire import BadMessage, BrokenStream, Gone, Wire
from opstep.lsp.project import Project
from opstep.lsp.protocol import Protocol, converter, folders_of, in_loop
from opstep.lsp.registry import Feature, features
from opstep.lsp.scheduler import CheckScheduler
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.version import __version__

# What pygls tells of errors is told by us, in the client's log: not on stderr as well.
logging.getLogger("pygls").addHandler(logging.NullHandler())

logging.getLogger("pygls").setLevel(logging.CRITICAL)  # what matters is written to our own log

LONGEST_MESSAGE = 256 << 20  # bytes; a text is sent whole when it is opened
PARENT_S = 2.0  # how often to look whether the editor still lives
FAILED = -32803  # RequestFailed: the request is right, and cannot be answered
_BUG = JsonRpcInternalError.CODE


class Server(LanguageServer):
    """One client's session: what it has said, and when its texts are checked."""

    def __init__(self, wire: Wire, log: Log):
        super().__init__(
            "opstep",
            __version__,
            protocol_cls=Protocol,
            converter_factory=converter,
            max_workers=4,
        )
        self.wire = wire
        self.log = log
        self.project = Project(self._notify, self._ask)
        self.protocol.set_writer(_Writer(wire), include_headers=False)
        self.code = 1
        self._done = asyncio.Event()
        self.checks = CheckScheduler(self.project, self._publish, log)
        self.project.recheck = self.checks.check_all
        for declared in features().values():
            self._register(declared)

    def _register(self, declared: Feature) -> None:
        handler = self._handler(declared)
        if declared.thread:
            handler = self.thread()(handler)
        self.feature(declared.method, declared.options)(handler)

    def _handler(self, declared: Feature) -> Callable[[Any], Any]:
        @wraps(declared.function)
        def handler(params: Any) -> Any:
            try:
                if declared.method.startswith("opstep/") and not isinstance(params, dict):
                    raise InputError(f"{declared.method}: its params are an object")
                return declared.function(self.project, params)
            except OpstepError as error:
                hints = [f"\nhint: {d.hint}" if d.hint else "" for d in error.diagnostics]
                text = "\n".join(
                    d.message + hint for d, hint in zip(error.diagnostics, hints, strict=True)
                )
                raise JsonRpcException(text, FAILED) from None
            except Exception as error:
                self.log(f"{declared.method}: {traceback.format_exc()}")
                what = f"{declared.method}: {type(error).__name__}: {error}"
                raise JsonRpcInternalError(f"{what}: this is a bug in opstep") from None

        del handler.__wrapped__  # its signature is its own
        return handler

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Into the log; who asked has had an answer. What a feature refuses is not our error."""
        if isinstance(error, JsonRpcException) and error.code in (FAILED, _BUG):
            return  # bugs have been logged, with where they are
        self.log(f"{getattr(source, '__name__', source)}: {error}")

    # --- to the client ----------------------------------------------------------------------------

    def _notify(self, method: str, params: Any) -> None:
        with suppress(Gone):
            self.protocol.notify(method, params)

    def _publish(self, method: str, params: dict[str, Any]) -> None:
        """A notification that is plain JSON."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def _ask(self, method: str, params: Any) -> None:
        with suppress(Gone):
            self.protocol.send_request(method, params)

    # --- what the client says ---------------------------------------------------------------------

    def greet(self, params: types.InitializeParams) -> None:
        """`initialize`: what the client can do, and how the user wants it."""
        project = self.project
        project.capabilities = params.capabilities
        project.folders = folders_of(params)
        if isinstance(params.initialization_options, dict):
            project.settings = params.initialization_options

    def greeted(self) -> None:
        """`initialized`: from now on the client can be asked, and tells what changes on disk."""
        workspace = getattr(self.project.capabilities, "workspace", None)
        watching = getattr(workspace, "did_change_watched_files", None)
        if watching is not None and watching.dynamic_registration:
            watchers = [types.FileSystemWatcher("**/*.opg")]
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
            method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
            registrations = [types.Registration("opstep files", method, options)]
            self._ask(types.CLIENT_REGISTER_CAPABILITY, types.RegistrationParams(registrations))

    def opened(self, uri: str, text: str, version: int) -> None:
        self.project.open(uri, text, version)
        self.checks.check_soon(uri)

    def changed(
        self, uri: str, changes: Sequence[types.TextDocumentContentChangeEvent], version: int
    ) -> None:
        file = self.project.opened(uri)
        if file is None:
            self.log(f"{uri} was changed, but not opened")
            return
        file.edit(changes, version)
        self.checks.check_soon(uri)

    def closed(self, uri: str) -> None:
        self.project.close(uri)
        self.checks.forget(uri)

    # --- from beginning to end --------------------------------------------------------------------

    async def run(self) -> int:
        """Until the client is gone; the exit code."""
        loop = asyncio.get_running_loop()
        reader = threading.Thread(target=self._read, args=(loop,), daemon=True)
        reader.start()
        watching = asyncio.create_task(self._watch_parent())
        await self._done.wait()
        watching.cancel()
        return self.code

    def leave(self, code: int) -> None:
        """Ends the session."""
        self.code = code
        self._done.set()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hands messages to the loop until there are no more."""
        going = True
        while going:
            try:
                message = self.wire.read()
            except BadMessage as error:
                going = in_loop(loop, self._bad, str(error))
                continue
            except BrokenStream as error:
                self.log(f"the client is not understood: {error}")
                message = None
            if message is None:
                in_loop(loop, self.leave, 1)
                return
            going = in_loop(loop, self._handle, message)

    def _bad(self, text: str) -> None:
        self.log(f"a message is of no use: {text}")
        self._refuse(None, -32700, text)

    def _refuse(self, id: Any, code: int, text: str) -> None:
        """An error response."""
        self._send({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}})

    def _handle(self, message: dict[str, Any]) -> None:
        id, method = message.get("id"), message.get("method")
        if not isinstance(id, (int, str, type(None))) or not isinstance(method, (str, type(None))):
            self._bad("an id is a number or a string, and a method is a string")
            return
        if message.get("jsonrpc") != "2.0":
            self._bad('it does not say "jsonrpc": "2.0"')
            return
        try:
            structured: Any = self.protocol.structure_message(message)
            self.protocol.handle_message(structured)
        except JsonRpcException as error:
            self.log(f"{method or 'a message'}: {error}")
            if method is not None and id is not None:
                self._refuse(id, error.code, error.message or "these params are not understood")
        except Gone:
            self.leave(1)
        except Exception:
            self.log(traceback.format_exc())

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(Gone):
            self.wire.write(message)

    async def _watch_parent(self) -> None:
        """Leaves when the editor that said its process is gone."""
        while True:
            await asyncio.sleep(PARENT_S)
            if self.process_id and not _lives(self.process_id):
                self.log("the editor is gone")
                self.leave(1)


class _Writer:
    """What pygls writes to."""

    def __init__(self, wire: Wire):
        self.wire = wire

    def write(self, data: bytes) -> None:
        self.wire.write_body(data)

    def close(self) -> None:
        pass


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def serve(wire: Wire, log: Log) -> int:
    """One session, from its first message until the client is gone; its exit code."""

    async def session() -> int:
        server = Server(wire, log)
        try:
            return await server.run()
        finally:
            server.checks.end()

    return asyncio.run(session())


def serve_stdio(log: Log) -> int:
    """A session on this process's standard input and output."""
    return serve(Wire(*standard_streams(), LONGEST_MESSAGE), log)


def listener(host: str, port: int, log: Log) -> server.Listener:
    """Listens on a port of this machine; raises `InputError` where it cannot be had."""

    def one(connection: socket.socket) -> None:
        serve(Wire(*streams_of(connection), LONGEST_MESSAGE), log)

    return server.Listener(host, port, one, log)
