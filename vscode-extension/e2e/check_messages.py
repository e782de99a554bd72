"""Holds captured DAP conversations against the protocol's schema: python check_messages.py FOLDER.

Each line of the folder's .jsonl files is one message.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/dap"))
import schema

# Of debugpy, beyond the protocol.
_CAPABILITIES = ("supportsDebuggerProperties", "supportsTerminateDebuggee")
_EVENTS = "debugpy"  # begin so


def _is_own(message: dict[str, Any]) -> bool:
    return str(message.get("event")).startswith(_EVENTS)


def _as_protocol(message: dict[str, Any]) -> dict[str, Any]:
    """Without what debugpy adds to it, and with what it leaves out where it refuses something."""
    body = message.get("body") or {}
    if message.get("success") is False:
        message["body"] = body
    for name in _CAPABILITIES if message.get("command") == "initialize" else ():
        body.pop(name, None)
    for module in [body["module"]] if message.get("event") == "module" else body.get("modules", []):
        module.pop("package", None)
    return message


def faults(path: Path) -> tuple[int, list[str]]:
    """The number of messages, and what is wrong with them."""
    found = []
    messages = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_debugpy = any(map(_is_own, messages))
    for number, message in enumerate(messages, 1):
        try:
            if not _is_own(message):
                schema.check_message(_as_protocol(message) if by_debugpy else message)
        except (AssertionError, KeyError, ValueError) as error:
            found.append(f"{path.name}:{number}: {error}")
    return len(messages), found


def main(folder: str) -> int:
    files = sorted(Path(folder).glob("*.jsonl"))
    results = [faults(path) for path in files]
    wrong = [text for _, found in results for text in found]
    count = sum(n for n, _ in results)
    print(f"{count} DAP messages of {len(files)} tests, {len(wrong)} against the schema")
    for text in wrong[:20]:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
