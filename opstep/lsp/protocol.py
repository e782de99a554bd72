"""The protocol's own requests: greeting, leaving, and what the editor says of its texts.

pygls knows the messages and what a server can say it offers. The texts are ours (`project.py`), and
so is the reading of messages (`server.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsprotocol import converters, types
from pygls import uris
from pygls.protocol import (
    JsonRPCNotification,
    JsonRPCRequestMessage,
    JsonRPCResponseMessage,
    LanguageServerProtocol,
    lsp_method,
)

if TYPE_CHECKING:
    from opstep.lsp.server import Server

_PLAIN = (JsonRPCRequestMessage, JsonRPCNotification, JsonRPCResponseMessage)


def converter():
    """From JSON to the protocol's classes; the params of our own methods stay dicts."""
    result = converters.get_converter()
    for kind in _PLAIN:
        result.register_structure_hook(kind, _plain)
        result.register_unstructure_hook(kind, _as_dict)
    return result


def _plain(message: Mapping[str, Any], kind: type) -> Any:
    names = {"method": "", "params": None, "result": None, "id": None, "jsonrpc": "2.0"}
    return kind(**{k: message.get(k, v) for k, v in names.items() if k in kind.__annotations__})


def _as_dict(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in type(message).__annotations__}


class Protocol(LanguageServerProtocol):
    """What pygls offers, with texts kept by us."""

    _server: Server

    def structure_message(self, data: dict[str, Any]) -> Any:
        """`data`, a whole message, as the protocol's class."""
        return super().structure_message(data)

    @lsp_method(types.EXIT)
    def lsp_exit(self, *args: Any) -> None:
        self._server.leave(0 if self._shutdown else 1)

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams):
        if params.capabilities.general is not None:  # UTF-16, which every client knows
            params.capabilities.general.position_encodings = None
        result = yield from super().lsp_initialize(params)
        self._server.greet(params)
        return result

    @lsp_method(types.INITIALIZED)
    def lsp_initialized(self, *args: Any) -> None:
        self._server.greeted()

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        document = params.text_document
        self._server.opened(document.uri, document.text, document.version)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        document = params.text_document
        self._server.changed(document.uri, params.content_changes, document.version)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._server.closed(params.text_document.uri)

    @lsp_method(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def lsp_workspace__did_change_workspace_folders(
        self, params: types.DidChangeWorkspaceFoldersParams
    ) -> None:
        folders = self._server.project.folders
        removed = {uris.to_fs_path(f.uri) for f in params.event.removed}
        folders[:] = [path for path in folders if path not in removed]
        folders += [path for f in params.event.added if (path := uris.to_fs_path(f.uri))]


def folders_of(params: types.InitializeParams) -> list[str]:
    """Paths of the folders that the client has open."""
    open_uris = [f.uri for f in params.workspace_folders or ()] or [params.root_uri or ""]
    found = [uris.to_fs_path(uri) for uri in open_uris if uri] or [params.root_path]
    return [path for path in found if path]


def in_loop(loop: asyncio.AbstractEventLoop, function: Any, *args: Any) -> bool:
    """Calls a function in a loop from another thread; False where the loop has ended."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
