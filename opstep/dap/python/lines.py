"""Breakpoints of our own on lines of a Python script, beside the client's: they look at watched
expressions, and say where lists of ops begin. debugpy has one breakpoint a line, so on a line that
has both, one condition asks for both.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opstep.dap.python.channel import Refused, Unreachable
from opstep.dap.python.disassembly import Disassembly

if TYPE_CHECKING:
    from opstep.dap.python.proxy import Proxy

Message = dict[str, Any]

IDS = 1 << 27  # of data breakpoints begin here; debugpy counts from 0
_LINES = "__import__('opstep.debuggee.stops.lines', None, None, ['x'])"
_AT = _LINES + ".at({path!r}, {line}, locals(), globals())"
_ABOUT = {
    "expression": str,
    "path": str,
    "line": int,
    "frame": int,
}  # what the id of a data breakpoint says
_UNKNOWN = "this is no id of a data breakpoint of this session"
_BEGIN = _LINES + ".begin({number}, locals(), globals())"


class Lines:
    def __init__(self, proxy: Proxy):
        self._proxy = proxy
        self.disassembly = Disassembly(proxy, self.send)
        self._clients: dict[str, Message] = {}  # arguments of setBreakpoints, by path
        self._watched: dict[str, set[int]] = {}
        self._numbers: dict[str, int] = {}  # of data breakpoints, by their dataId
        self._frames: dict[int, Message] = {}  # as the client got them last
        self._frame_of: dict[int, int] = {}  # of a reference of variables
        self._names: dict[tuple[int, str], str] = {}  # expressions of variables

    # --- breakpoints on lines ---

    def set(self, message: Message, arguments: Message) -> None:
        """The client's, of a file."""
        path = str((arguments.get("source") or {}).get("path"))
        self._clients[path] = arguments
        count = len(arguments.get("breakpoints") or [])

        def trim(body: Message, arguments: Message) -> None:
            body["breakpoints"] = body.get("breakpoints", [])[:count]

        self._proxy.pass_on(message, self._merged(path), trim)

    def send(self, path: str) -> None:
        """Those of a file, as they are now."""
        self._proxy.ask("setBreakpoints", self._merged(path), lambda response: None)

    def _merged(self, path: str) -> Message:
        arguments = self._clients.get(path) or {"source": {"path": path}}
        listed = {line for at, line in self.disassembly.listed if at == path}
        ours = self._watched.get(path, set()) | listed
        shared = []
        for one in arguments.get("breakpoints") or []:
            is_plain = not (one.get("logMessage") or one.get("hitCondition"))
            if is_plain and one["line"] in ours:
                theirs = one.get("condition") or "True"
                at = _AT.format(path=path, line=one["line"])
                one = one | {"condition": f"{at} or (\n{theirs}\n)"}
            shared.append(one)
        rest = sorted(ours - {b["line"] for b in shared})
        more = [{"line": n, "condition": _AT.format(path=path, line=n)} for n in rest]
        return arguments | {"breakpoints": shared + more}

    # --- data breakpoints ---

    def set_watches(self, message: Message, arguments: Message) -> None:
        """All that there are from now on. The response comes when they are in place."""
        given = arguments.get("breakpoints") or []
        new, wanted = [], []
        unknown = [k for k, one in enumerate(given) if not _is_known(one["dataId"])]
        for one in (g for k, g in enumerate(given) if k not in unknown):
            if one["dataId"] not in self._numbers:
                self._numbers[one["dataId"]] = IDS + len(self._numbers)
                new.append(one["dataId"])
            about = json.loads(one["dataId"])
            wanted.append({**one, **about, "id": self._numbers[one["dataId"]]})
        try:
            answers = self._call("set_watches", breakpoints=wanted)
        except (Refused, Unreachable) as error:
            answers = [{"complaint": str(error), "lines": []} for _ in wanted]
        before, self._watched = self._watched, {}
        for one, answer in zip(wanted, answers, strict=True):
            if not answer["complaint"]:
                self._watched.setdefault(one["path"], set()).update(answer["lines"])
        for path in {*before, *self._watched}:
            if before.get(path) != self._watched.get(path):
                self.send(path)
        complaints = {b["id"]: a["complaint"] for b, a in zip(wanted, answers, strict=True)}

        def respond() -> None:
            texts = [(b["id"], complaints[b["id"]]) for b in wanted]
            found = [
                {"id": number, "verified": not text, **({"message": text} if text else {})}
                for number, text in texts
            ]
            for k in unknown:
                found.insert(k, {"verified": False, "message": _UNKNOWN})
            self._proxy.respond(message, {"breakpoints": found})

        self._begin(new, complaints, respond)

    def _begin(
        self, new: list[str], complaints: dict[int, str], then: Callable[[], None]
    ) -> None:  # fmt: skip
        """Has the program look at each in its frame."""
        if not new:
            then()
            return
        number = self._numbers[new[0]]

        def seen(response: Message) -> None:
            with suppress(KeyError, ValueError, SyntaxError):  # the frame is gone
                complaints[number] = complaints[number] or literal_eval(response["body"]["result"])
            self._begin(new[1:], complaints, then)

        evaluated = {"expression": _BEGIN.format(number=number), "context": "watch"}
        evaluated["frameId"] = json.loads(new[0])["frame"]
        self._proxy.ask("evaluate", evaluated, seen)

    def info(self, message: Message, arguments: Message) -> None:
        """A variable, or an expression of a frame, as something to watch."""
        name, reference = str(arguments.get("name", "")), arguments.get("variablesReference") or 0
        frame = self._frame_of.get(reference) if reference else arguments.get("frameId")
        expression = self._names.get((reference, name), name)
        where = self._frames.get(frame or 0)
        if where is None or not expression:
            text = "only what a frame of the program knows can be watched"
            self._proxy.respond(message, {"dataId": None, "description": text})
            return
        about = {
            "expression": expression, "path": where["source"]["path"], "line": where["line"],
            "frame": frame,
        }  # fmt: skip
        body = {"dataId": json.dumps(about), "description": expression, "accessTypes": ["write"]}
        self._proxy.respond(message, body)

    # --- what the client has seen, which data breakpoints name ---

    def saw_frames(self, body: Message, listed: int = 0) -> None:
        """`listed`: the number of ops of the innermost one's line that ran so far."""
        for frame in body.get("stackFrames") or []:
            if path := (frame.get("source") or {}).get("path"):
                self._frames[frame["id"]] = frame
                reference = self.disassembly.reference(path, frame["line"], max(listed - 1, 0))
                frame["instructionPointerReference"] = reference
                listed = 0
                self.disassembly.top = self.disassembly.top or (path, frame["line"])

    def saw_scopes(self, body: Message, arguments: Message) -> None:
        for scope in body.get("scopes") or []:
            self._frame_of[scope["variablesReference"]] = arguments["frameId"]

    def saw_variables(self, body: Message, arguments: Message) -> None:
        reference = arguments["variablesReference"]
        if (frame := self._frame_of.get(reference)) is None:
            return
        for one in body.get("variables") or []:
            self._names[reference, one["name"]] = one.get("evaluateName") or one["name"]
            if one.get("variablesReference"):
                self._frame_of[one["variablesReference"]] = frame

    # --- stops ---

    def stopped(self, body: Message) -> None:
        """At a breakpoint, which may be ours. Frames and references are new."""
        for seen in (self._frames, self._frame_of, self._names):
            seen.clear()
        self.disassembly.stopped(str(body.get("reason")))
        if self._watched and body.get("reason") == "breakpoint":
            with suppress(Refused, Unreachable):
                if found := self._call("latest"):
                    ids = found.pop("ids")
                    body.update(found, hitBreakpointIds=ids)

    def _call(self, name: str, **given: Any) -> Any:
        return self._proxy.helper("lines", name=name, given=given)


def _is_known(data: str) -> bool:
    """Whether `info` can have made the id of a data breakpoint."""
    try:
        about = json.loads(data)
    except ValueError:
        return False
    known = isinstance(about, dict) and {name: type(value) for name, value in about.items()}
    return known == _ABOUT
