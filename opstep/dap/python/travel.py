"""Time travel in a session on a Python script: positions in what the helper recorded.

While a position is set, the stack, the variables and expressions are those of that moment, and the
program stands where it stopped. Forward again from the last one is the present.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opstep.dap.python.channel import Refused, Unreachable

if TYPE_CHECKING:
    from opstep.dap.python.proxy import Proxy

Message = dict[str, Any]

FRAMES = 1 << 29  # ids of frames of the past begin here
REFERENCES = 1 << 30  # and those of its variables, in `opstep.debuggee.past`
TARGETS = 1 << 30  # and those of lines to go back to
BACK = ("stepBack", "reverseContinue")
FORTH = ("next", "stepIn", "stepOut", "continue")
IS_FIXED = "the past cannot be changed: go forward to the present first"
MARKED = {
    "uncertain": "uncertain: it changed at some time that was not seen",
    "as it is now": "as it is now: what it was then is not known",
}


class Travel:
    """`position`: None in the present. `breakpoints`: lines of files, with their conditions."""

    def __init__(self, proxy: Proxy):
        self._proxy = proxy
        self.position: int | None = None
        self.is_stopped = False
        self.thread = 0
        self.breakpoints: dict[str, dict[int, str | None]] = {}
        self._left_out: list[str] = []  # as it was reported last
        self._locals: set[int] = set()  # references of scopes, whose names are expressions

    # --- what the session hears anyhow ---

    def stopped(self, thread: int) -> None:
        """In the present."""
        self.position, self.is_stopped, self.thread = None, True, thread
        self._locals.clear()

    def set_breakpoints(self, arguments: Message) -> None:
        lines = {
            b["line"]: b.get("condition")
            for b in arguments.get("breakpoints") or []
            if not b.get("logMessage")
        }
        self.breakpoints[str((arguments.get("source") or {}).get("path"))] = lines

    def takes(self, command: str, arguments: Message) -> bool:
        """Whether a request is about the past."""
        if command in BACK:
            return True
        if command == "goto":
            return arguments.get("targetId", 0) >= TARGETS
        if arguments.get("variablesReference", 0) >= REFERENCES:
            return True
        if FRAMES <= arguments.get("frameId", 0) < REFERENCES - 1:
            return True
        if self.position is None:
            if command in FORTH:
                self.is_stopped = False
            return False
        is_here = arguments.get("threadId") == self.thread
        return command in ("pause", "gotoTargets") or (is_here and command in (
            "stackTrace", "exceptionInfo", *FORTH,
        ))  # fmt: skip

    def handle(self, message: Message, arguments: Message) -> None:
        """Raises `Refused`, `Unreachable`."""
        command = str(message["command"])
        if command in BACK + FORTH:
            self._move(message, command, arguments)
        elif command in ("setVariable", "setExpression"):
            raise Refused(IS_FIXED)
        else:
            handler = getattr(self, f"_{command}", None)
            if handler is None:
                raise Refused("not possible in the past")
            handler(message, arguments)

    # --- moves ---

    def _move(self, message: Message, command: str, arguments: Message) -> None:
        if not self.is_stopped:
            raise Refused("the program is running: pause it first")
        self._choose(arguments)
        lines = {path: list(found.items()) for path, found in self.breakpoints.items()}
        moved = self._call("move", kind=command, position=self.position, breakpoints=lines)
        self._proxy.respond(
            message, {"allThreadsContinued": False} if command == "continue" else {}
        )
        self._arrive(moved["position"], moved["reason"], moved["text"])

    def _choose(self, arguments: Message) -> None:
        """The thread that is moved. Raises `Refused` where it has no past."""
        thread = arguments.get("threadId", self.thread)
        if reason := self._proxy.helper("without_past", thread=thread):
            raise Refused(reason)
        self.thread = thread

    def _goto(self, message: Message, arguments: Message) -> None:
        self._choose(arguments)
        position = arguments["targetId"] - TARGETS
        self._call("stack", position=position)  # refuses one that there is no more, or never was
        self._proxy.respond(message)
        self._arrive(position, "goto", "")

    def go_back(self, message: Message, path: str, line: int) -> None:
        """To the last time that a line ran. Raises `Refused`, `Unreachable`."""
        found = self._call("targets", path=path, line=line, position=self.position, most=1)
        if not found:
            raise Refused(f"no time at which {os.path.basename(path)}:{line} ran is recorded")
        self._proxy.respond(message)
        self._arrive(found[0][0], "goto", "")

    def _arrive(self, position: int | None, reason: str, text: str) -> None:
        if self.position is None and position is not None:
            self._say_what_is_left_out()
        self.position = position
        where = "Paused in the present" if position is None else "Paused in the past"
        where = _with(where, self._call("moment", position=position))
        reason = "step" if reason == "present" else reason
        body = {"reason": reason, "threadId": self.thread, "allThreadsStopped": True}
        self._proxy.event(
            "stopped", body | {"description": where} | ({"text": text} if text else {})
        )

    def _say_what_is_left_out(self) -> None:
        found = self._call("left_out")
        if found and found != self._left_out:
            self._proxy.output(f"Of the past, {'; '.join(found)}.")
        self._left_out = found

    def _pause(self, message: Message, arguments: Message) -> None:
        self._proxy.respond(message)

    def _gotoTargets(self, message: Message, arguments: Message) -> None:  # noqa: N802
        self._proxy.respond(message, {"targets": self.targets(arguments)})

    def targets(self, arguments: Message) -> list[Message]:
        """The times that a line ran, as places to go back to, the latest first."""
        path, line = (arguments.get("source") or {}).get("path"), arguments.get("line")
        found = self._call("targets", path=path, line=line, position=self.position)
        return [
            {"id": TARGETS + position, "label": f"Back to {moment or _runs(k)}", "line": line}
            for k, (position, moment) in enumerate(found)
        ]

    def describe(self, stopped: Message, description: str) -> None:
        """Adds to a stop in the present where the program stands in its loops and its training."""
        with suppress(Refused, Unreachable):
            if moment := self._call("moment", position=None, thread=self.thread):
                stopped["description"] = _with(description, moment)

    # --- what was there ---

    def _stackTrace(self, message: Message, arguments: Message) -> None:  # noqa: N802
        frames = [
            {
                "id": FRAMES + k, "name": f["name"], "line": f["line"], "column": 1,
                "source": {"path": f["path"], "name": os.path.basename(f["path"])},
            }
            for k, f in enumerate(self._call("stack", position=self.position))
        ]  # fmt: skip
        start, levels = arguments.get("startFrame") or 0, arguments.get("levels") or len(frames)
        body = {"stackFrames": frames[start : start + levels], "totalFrames": len(frames)}
        self._proxy.respond(message, body)

    def _exceptionInfo(self, message: Message, arguments: Message) -> None:  # noqa: N802
        raise Refused("the program was not stopped at an exception then")

    def _scopes(self, message: Message, arguments: Message) -> None:
        frame = arguments["frameId"] - FRAMES
        scopes = self._call("scopes", position=self.position, frame=frame)
        self._locals |= {scope["variablesReference"] for scope in scopes}
        self._proxy.respond(message, {"scopes": scopes})

    def _variables(self, message: Message, arguments: Message) -> None:
        reference = arguments["variablesReference"]
        found = self._call("variables", reference=reference)
        start = arguments.get("start") or 0
        shown = found[start : start + (arguments.get("count") or len(found))]
        variables = [_variable(v) for v in shown]
        if reference in self._locals:
            for one in variables:
                one["evaluateName"] = one["name"]
        self._proxy.views.mark(variables, reference)
        self._proxy.respond(message, {"variables": variables})

    def _evaluate(self, message: Message, arguments: Message) -> None:
        frame = arguments["frameId"] - FRAMES
        expression = arguments.get("expression", "")
        found = self._call("watch", expression=expression, position=self.position, frame=frame)
        shown = _variable({k: v for k, v in found.items() if k != "name"})
        body = {"result": shown.pop("value")} | shown
        self._proxy.views.colour_result(body, arguments)
        self._proxy.respond(message, body)

    def _call(self, name: str, **arguments: Any) -> Any:
        return self._proxy.helper("past", name=name, given=arguments)


def _with(description: str, moment: str) -> str:
    return f"{description}: {moment}" if moment else description


def _runs(k: int) -> str:
    return f"{k + 1} runs of this line before" if k else "the last run of this line"


def _variable(found: Message) -> Message:
    """With what is not certain of it, in words."""
    marks = found.pop("marks", None) or []
    if marks:
        texts = "; ".join(str(MARKED.get(mark, mark)) for mark in marks)
        found["value"] = f"{found['value']}  ({texts})"
    return found | {"presentationHint": {"attributes": ["readOnly"]}}
