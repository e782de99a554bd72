"""The Perfetto UI in a frame of another page, such as a view of an editor.

Who frames it is named, and may be forwarded to: an editor on another machine reaches this one
through a tunnel or a proxy, under a host and a path that cannot be known here. So the Host header
tells nothing, and what keeps pages from elsewhere out is a token in the path, which only who asked
for the server is told. `bridge.js` goes into the page and speaks with the frame around it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from opstep.runtime.ir.errors import InputError

BRIDGE = "/opstep_bridge.js"
MOST_ANCESTORS = 16

# Schemes that pages of the web cannot have: VS Code's own windows and the views in them.
_OF_EDITORS = ("vscode-webview:", "vscode-file:")
_ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")


def new_token() -> str:
    """What stands first in the path of all that is asked for: 192 random bits."""
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
    """The path behind the token; None where the token is not there."""
    first, slash, rest = path.removeprefix("/").partition("/")
    if not slash or not secrets.compare_digest(first.encode(), token.encode()):
        return None
    return f"/{rest}"


def with_bridge(page: bytes, route: str) -> bytes:
    """The UI's page with our script before its own. `route`: what the UI is told behind ``#``."""
    literal = json.dumps(route).replace("<", "\\u003c")
    script = f"<script>const opstepRoute = {literal};</script><script src='.{BRIDGE}'></script>"
    head, found, rest = page.partition(b"<head>")
    return head + found + script.encode() + rest


def bridge() -> bytes:
    return Path(__file__).with_name("bridge.js").read_bytes()
