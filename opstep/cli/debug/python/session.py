"""A session on a Python script, which runs under a debug adapter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from opstep.cli.common import MACHINE, OK
from opstep.cli.debug.python.points import Entry, Points
from opstep.cli.debug.python.run import Run
from opstep.cli.debug.python.source import PythonFile, python_file
from opstep.cli.debug.registry import PYTHON, Command, Refused, split
from opstep.cli.debug.showing import Paint, shown_path
from opstep.cli.debug.standing import Standing
from opstep.frontends.scripts.script import Script
from opstep.runtime.ir.diagnostics import visible

# What no argument of a command begins with: the line is Python.
_PYTHON = re.compile(
    r"\s*(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)|[.,(\[:]|\s+(?:in|is|and|or|not)\s"
    r"|\s+(?:[-+*/%&|^@<>]|//|\*\*|<<|>>|[=!<>]=)\s+\S"
)
PAST, PRESENT = "Paused in the past", "Paused in the present"
AFTER_OP, BEFORE_CALL = "Paused after ", "Paused before "  # descriptions of stops
_EVERY_FRAME = 0  # levels of a stack: all


@dataclass(frozen=True)
class Frame:
    """`id`: the adapter's number, while the stop lasts; `instruction`: of the op that it is at."""

    number: int
    id: int
    name: str
    path: str
    line: int
    instruction: str


class PythonSession(Standing):
    """`reads`: whether the script reads what we could, which no commands come from."""

    registry = PYTHON

    def __init__(self, about: tuple[Script, bool], paint: Paint, interactive: bool):
        super().__init__(paint, interactive)
        self.script, self._reads = about
        self.points = Points()
        self.displays: dict[int, str] = {}
        self.run: Run | None = None  # that stands somewhere, or is about to begin
        self.stands = self.has_run = False
        self.code = OK  # of a run that ended
        self.thread = 0
        self._shown = 0  # the thread that was shown last
        self._time, self._moment = PRESENT, ""  # of the last stop
        self.filters = {"uncaught", "nan-origin"}  # what is caught, of what the adapter offers
        self._frames: list[Frame] | None = None

    # --- runs ---

    def begun(self) -> Run:
        """The run, or one that can be launched. Raises `Refused`."""
        if self.run is None:
            self.run = Run(self.script, self._reads, self.say)
            self.run.on_breakpoint = self.points.changed
        return self.run

    def alive(self) -> Run:
        """The run that stands somewhere. Raises `Refused`."""
        if self.run is not None and self.stands:
            return self.run
        if self.has_run:
            raise Refused("the script has ended", "run starts it again")
        raise Refused("the script does not run", "run starts it")

    def launch(self, at_entry: bool) -> None:
        """Starts the script, again if it runs. Raises `Refused`."""
        if self.stands:
            self.end()
        run = self.begun()
        self.has_run = True
        try:
            run.launch(self._configure, at_entry)
        except Refused:
            self.end()
            raise
        self._arrived(run.wait(), None)

    def _configure(self) -> None:
        self.points.request = self.begun().client.request
        self.points.send()
        for entry in self.points.entries.values():
            if not entry.path:
                self.warn(entry)
        self.send_filters()

    def changed(self, entries: list[Entry]) -> None:
        """Gives the adapter these breakpoints as they are now."""
        self.points.send(entries)

    def warn(self, entry: Entry) -> None:
        """Of what the adapter says of a breakpoint."""
        if entry.message:
            lead = self.paint("warning:", "yellow")
            self.say(f"{lead} {entry.title.lower()} {entry.number}: {visible(entry.message)}")

    def offered(self) -> dict[str, str]:
        """The filters of the adapter, with their labels. Raises `Refused`."""
        filters = self.begun().capabilities.get("exceptionBreakpointFilters") or []
        return {str(f["filter"]): str(f.get("label", "")) for f in filters}

    def send_filters(self) -> None:
        """Has the adapter catch what is caught now."""
        caught = [name for name in self.offered() if name in self.filters]
        if self.points.request is not None:
            self.points.request("setExceptionBreakpoints", filters=caught)

    def end(self) -> None:
        """Ends the script, if it runs."""
        if self.run is not None:
            self.run.end()
        self._forget()

    def _forget(self) -> None:
        self.run, self.stands, self.points.request = None, False, None
        self._frames = self.listed = None

    def on_interrupt(self) -> None:
        """Ctrl-C pauses the script, or ends the wait for an answer."""
        if self.run is not None:
            self.run.interrupt()

    # --- moves ---

    def go(self, command: str, times: int = 1, **arguments: Any) -> dict[str, Any] | None:
        """Moves so many times, or until something else stops it, and shows where it stands. Gives
        the last stop; None where the script has ended.
        """
        run, before, stop = self.alive(), self._place(), None
        for _ in range(times):
            self._frames = None
            stop = run.move(command, threadId=self.thread, **arguments)
            self.stood(stop)
            if stop is None or stop.get("reason") != "step" or self.interrupted.is_set():
                break
        self._arrived(stop, before)
        return stop

    def go_past(self) -> None:
        """Steps over lines until one below follows, or another frame."""
        run, before, line, stop = self.alive(), self._place(), self.frame().line, None
        while True:
            stop = run.move("next", threadId=self.thread)
            self.stood(stop)
            if stop is None or stop.get("reason") != "step" or self.interrupted.is_set():
                break
            if self._place() != before or self.frames()[0].line > line:
                break
        self._arrived(stop, before)

    def stood(self, stop: dict[str, Any] | None) -> None:
        """The script stands again."""
        self._frames, self._selected, self.listed = None, 0, None
        self.stands = stop is not None
        if stop is not None:
            self.thread = stop.get("threadId", self.thread)

    def _place(self) -> tuple[Any, ...]:
        frames = self.frames()
        return (len(frames), frames[0].name, frames[0].path) if frames else ()

    def _arrived(self, stop: dict[str, Any] | None, before: tuple[Any, ...] | None) -> None:
        """Shows why and where it stands. `before`: where it stood, if it did."""
        thread = self._shown
        self.stood(stop)
        self._shown = self.thread
        if stop is None:
            self._ended()
            return
        hits = self.points.hit(stop)
        if before is not None and thread != self.thread:
            self.say(f"[{self.thread_name(self.thread)}]")
        for line in self._reasons(stop):
            self.say(line)
        if str(stop.get("description")).startswith(AFTER_OP):
            with suppress(Refused):
                self.print_value("op.result", "result = ")
        frames = self.frames()
        lead = f"{self.paint(f'{hits[0].title} {hits[0].number}', 'bold yellow')}, " if hits else ""
        entered = before is None or before != self._place() or stop.get("reason") != "step"
        if frames:
            end = f", {self.paint(visible(self._moment), 'dim')}" if self._moment else ""
            self.show_frame(frames[0], bool(hits) or entered, lead, end)
        self.show_displays()

    def _reasons(self, stop: dict[str, Any]) -> Iterable[str]:
        reason = stop.get("reason")
        where, self._moment = _moment(stop)
        if where != self._time:
            self._time = where
            yield self.paint(where, "bold yellow")
        if reason == "exception":
            yield from self._exception(stop)
        elif reason == "pause":
            yield self.paint(visible(str(stop.get("description") or "Paused.")), "bold yellow")
        elif str(stop.get("description")).startswith((AFTER_OP, BEFORE_CALL)):
            yield visible(str(stop.get("text")))
        elif stop.get("text") and reason not in ("step", "breakpoint", "function breakpoint"):
            yield visible(str(stop["text"]))

    def _exception(self, stop: dict[str, Any]) -> Iterable[str]:
        """Its type and text, and the report on it where the adapter has one."""
        info: dict[str, Any] = {}
        with suppress(Refused):
            info = self.alive().client.request("exceptionInfo", threadId=self.thread)
        kind = str(info.get("exceptionId") or stop.get("text") or "exception")
        text = str(info.get("description") or stop.get("description") or "")
        how = "Uncaught " if info.get("breakMode") == "unhandled" else ""
        first, *rest = text.splitlines() or [""]
        yield f"{self.paint(f'{how}{visible(kind)}:', 'bold red')} {visible(first)}".rstrip()
        yield from map(visible, rest)
        report = str((info.get("details") or {}).get("message") or "")
        if report and report != text:
            yield from map(visible, report.splitlines())

    def _ended(self) -> None:
        run = self.run
        code = run.code if run is not None else None
        if run is None or code is None:
            self.say("The script was not started.")
        elif run.was_ended:
            self.say(self.paint("The script was ended.", "bold"))
        elif run.was_left:
            self.say(self.paint("The debug adapter has ended, and the script with it.", "bold red"))
            self.code = MACHINE
        elif code < 0:
            name = _signal(-code)
            self.say(self.paint(f"The script was ended by {name}.", "bold red"))
            self.code = 128 - code
        else:
            how = f" with exit code {code}" if code else ""
            self.say(self.paint(f"The script has ended{how}.", "bold"))
            self.code = code
        self._forget()

    # --- frames ---

    def frames(self) -> list[Frame]:
        """Of the selected thread; none where the script does not run."""
        if self._frames is None:
            self._frames = self.frames_of(self.thread) if self.stands else []
        return self._frames

    def frames_of(self, thread: int) -> list[Frame]:
        answer = self.alive().client.request("stackTrace", threadId=thread, levels=_EVERY_FRAME)
        return [
            Frame(
                number, found["id"], str(found.get("name", "")),
                str((found.get("source") or {}).get("path") or ""), int(found.get("line", 0)),
                str(found.get("instructionPointerReference", "")),
            )
            for number, found in enumerate(answer.get("stackFrames", []))
        ]  # fmt: skip

    def threads(self) -> dict[int, str]:
        """Their names, by the adapter's numbers. Raises `Refused`."""
        found = self.alive().client.request("threads").get("threads") or []
        return {one["id"]: str(one["name"]) for one in found}

    def thread_name(self, thread: int) -> str:
        """``thread 2: Thread-1 (work)``"""
        found = self.threads()
        number = list(found).index(thread) + 1 if thread in found else 0
        return f"thread {number}: {visible(found.get(thread, 'unknown'))}"

    def choose(self, thread: int) -> None:
        """Steps follow this thread from now on."""
        self.thread = self._shown = thread
        self._frames = None

    def frame(self) -> Frame:
        self.alive()
        return super().frame()

    def described(self, frame: Frame) -> str:
        """``Net.forward at net.py:12``"""
        file, name = python_file(frame.path), frame.name
        function = file.around(frame.line) if file else None
        if function is not None and function.name.rpartition(".")[2] == name:
            name = function.name
        at = self.paint(f"{shown_path(frame.path)}:{frame.line}", "cyan")
        return f"{self.paint(visible(name), 'bold')} at {at}"

    def lines(self, frame: Frame) -> list[str]:
        file = python_file(frame.path)
        return file.lines if file is not None else []

    def file(self, path: str) -> PythonFile:
        """Raises `Refused`."""
        file = python_file(path)
        if file is None:
            raise Refused(f"{shown_path(path)} cannot be read from here")
        return file

    @property
    def path(self) -> str:
        """Of the file that a line alone means."""
        return self.frame().path if self.frames() else str(Path(self.script.path).absolute())

    # --- values ---

    def evaluate(self, text: str, context: str = "watch") -> dict[str, Any]:
        """The adapter's answer. Raises `Refused` with Python's error."""
        frame = self.frame()
        request = self.alive().client.request
        return request("evaluate", expression=text, frameId=frame.id, context=context)

    def variables(self, scope: str) -> list[dict[str, Any]]:
        """Of a scope of the selected frame: ``locals`` or ``globals``; a frame that has neither
        shows its first. Raises `Refused`.
        """
        request = self.alive().client.request
        scopes = request("scopes", frameId=self.frame().id).get("scopes") or []
        names = [str(found["name"]).lower() for found in scopes]
        scope = scope if {"locals", "globals"} & {*names} else "".join(names[:1])
        for found in scopes:
            if str(found["name"]).lower() == scope:
                reference = found["variablesReference"]
                return request("variables", variablesReference=reference).get("variables") or []
        return []

    def print_value(self, text: str, lead: str) -> None:
        """Evaluates an expression in the selected frame and prints it. Raises `Refused`."""
        self.say_text(lead, str(self.evaluate(text).get("result", "")))

    def say_text(self, lead: str, value: str) -> None:
        """A value as the adapter writes it; NaNs and infinities in red."""
        style = "red" if re.search(r"\b(NaN|nan|inf)\b", value) else ""
        lines = value.splitlines() or [""]
        self.say_value(lead, [self.paint(visible(line), style) for line in lines])

    def show_displays(self) -> None:
        """Values of ``display``, as far as they can be evaluated here."""
        for number, text in self.displays.items():
            with suppress(Refused):  # its names are not there yet
                self.print_value(text, f"{number}: {text} = ")

    # --- what is written ---

    def understood(self, line: str) -> tuple[Command, str]:
        """A line that no command begins is Python, and one that continues as Python does."""
        name, text = split(line)
        python = self.registry.find("!")
        if name == "!":
            return python, text
        if _PYTHON.match(line[len(name) :]):
            return python, line
        try:
            return self.registry.find(name), text
        except Refused:
            if not self.stands:
                raise
            return python, line


def _moment(stop: dict[str, Any]) -> tuple[str, str]:
    """Whether a script stands in the present, and where in its loops and its training."""
    where, _, moment = str(stop.get("description") or "").partition(": ")
    return (where if where == PAST else PRESENT), moment


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
