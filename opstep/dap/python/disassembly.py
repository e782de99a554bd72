"""``disassemble`` in a session on a Python script: the ops of a line's last run. An address has the
number of the line in its upper digits, and that of the op in the lower ones.

Ops are listed for the lines that were asked for last, from when they begin the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opstep.dap.python.channel import Refused, Unreachable

if TYPE_CHECKING:
    from opstep.dap.python.proxy import Proxy

Message = dict[str, Any]

OPS = 1 << 20  # of a line
MOST = 10_000  # instructions of one response
_LINES = 8  # that are listed at a time
_STOPS = 20  # without a request, after which nothing is listed
_LIST = (
    "__import__('opstep.debuggee.stops.lines', None, None, ['x']).list_lines({lines}, {at_start})"
)
_NONE = "(no op of this line has run since listing began)"
_PART = "(the line had begun before its ops were listed)"


class Disassembly:
    """`send`: sets breakpoints of a file anew. `listed`: lines of files, the latest last."""

    def __init__(self, proxy: Proxy, send: Callable[[str], None]):
        self._proxy, self._send = proxy, send
        self.listed: list[tuple[str, int]] = []
        self._lines: list[tuple[str, int]] = []  # that have a number
        self._stops = 0  # since the last request
        self.top: tuple[str, int] | None = None  # where the program stands
        self._is_at_start = False  # of that line

    def reference(self, path: str, line: int, op: int) -> str:
        if (path, line) not in self._lines:
            self._lines.append((path, line))
        return hex((self._lines.index((path, line)) + 1) * OPS + op)

    def stopped(self, reason: str) -> None:
        self._is_at_start, self.top = reason == "breakpoint", None
        self._stops += 1
        if self._stops > _STOPS and self.listed:
            self._list([], lambda: None)

    def answer(self, message: Message, arguments: Message) -> None:
        """Raises `Refused`."""
        count = arguments.get("instructionCount", 0)
        if not 0 <= count <= MOST:
            raise Refused(f"at most {MOST:,} instructions are disassembled at a time")
        try:
            number, first = divmod(int(str(arguments.get("memoryReference")), 16), OPS)
            path, line = self._lines[number - 1] if number else ("", 0)
        except (ValueError, IndexError):
            raise Refused("there is no line at this address") from None
        self._stops = 0
        first += arguments.get("offset", 0) + arguments.get("instructionOffset", 0)

        def respond() -> None:
            source = {"name": path.rpartition("/")[2], "path": path}
            texts = self._texts(path, line)
            found = []
            for k in range(first, first + count):
                one: Message = {"address": hex(max(number * OPS + k, 0)), "instruction": ""}
                if 0 <= k < len(texts):
                    one |= {"instruction": texts[k], "location": source, "line": line}
                else:
                    one["presentationHint"] = "invalid"
                found.append(one)
            self._proxy.respond(message, {"instructions": found})

        if not number or (path, line) in self.listed[-1:]:
            respond()
            return
        rest = [one for one in self.listed if one != (path, line)]
        self._list([*rest, (path, line)][-_LINES:], respond)

    def _texts(self, path: str, line: int) -> list[str]:
        try:
            given = {"path": path, "line": line}
            found = self._proxy.helper("lines", name="listing", given=given)
        except (Refused, Unreachable) as error:
            return [f"({error})"]
        ops = found["ops"]
        if more := found["count"] - len(ops):
            ops = [*ops, f"and {more:,} more"]
        if not ops:
            return [_NONE]
        return ops if found["is_whole"] else [*ops, _PART]

    def _list(self, lines: list[tuple[str, int]], then: Callable[[], None]) -> None:
        before, self.listed = self.listed, lines
        at_start = self._is_at_start and lines[-1:] == [self.top]
        listing = _LIST.format(lines=lines, at_start=at_start)
        self._proxy.evaluate_in(None, listing, lambda response: then())
        for path in dict.fromkeys(path for path, _ in {*before} ^ {*lines}):
            self._send(path)
