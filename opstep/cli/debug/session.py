"""A debugger at a terminal: reads commands, does them, shows where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opstep.api.job import odd_results
from opstep.cli.common import in_switches, watch_compiler
from opstep.cli.debug import showing
from opstep.cli.debug.points import KINDS, BreakpointTable, Entry
from opstep.cli.debug.registry import GRAPHS, Refused
from opstep.cli.debug.standing import Standing
from opstep.cli.debug.values import array_line, named_line, value_lines
from opstep.runtime.ir.diagnostics import OpstepError, render, render_all, visible

if TYPE_CHECKING:
    from opstep.runtime.debugger.debugger import Debugger, Stop
    from opstep.runtime.debugger.frames import Frame


class Session(Standing):
    """On a program's run."""

    registry = GRAPHS

    def __init__(self, debugger: Debugger, paint: showing.Paint, interactive: bool):
        super().__init__(paint, interactive)
        self.debugger = debugger
        self.points = BreakpointTable()
        self.displays: dict[int, tuple[str, str]] = {}  # number -> format, expression
        self.started = False
        self.ended = False
        self.thread: int | None = None
        self._has_hinted = False
        self._cut: tuple[Any, list[str]] | None = None  # a text and its lines
        debugger.on_output = self.on_output

    def on_output(self, text: str, frame: Frame | None) -> None:
        self.say(visible(text))

    def explain(self, error: Exception) -> None:
        """Of expressions as well."""
        from opstep.runtime.expressions import ExpressionError

        if isinstance(error, ExpressionError):
            self.say(render(error.diagnostic, self.paint.on))
        else:
            super().explain(error)

    # --- where it stands ---

    def frames(self) -> list[Frame]:
        return self.debugger.stack(self.thread)

    @property
    def whose(self) -> str:
        """The thread that steps follow."""
        return "all streams" if self.thread is None else f"stream {self.thread}"

    def choose(self, thread: int | None) -> None:
        """Steps follow this thread from now on; None: the order in which ops are issued."""
        self.thread = thread

    # --- running ---

    def changed(self, entries: list[Entry] | None = None) -> None:
        """Gives the debugger the breakpoints as they are now."""
        self.points.apply(self.debugger.breakpoints)

    def moved(self) -> None:
        """The run stands again."""

    def on_interrupt(self) -> None:
        """Ctrl-C pauses the run."""
        self.debugger.pause()

    def go(self, move: Callable[[], Stop], times: int = 1) -> None:
        """Moves so many times, or until something else stops it; then shows where it stands."""
        self.started = True
        before = first = self._position()
        stop = None
        with watch_compiler():
            for _ in range(times):
                before = self._position()
                stop = move()
                self.moved()
                if stop.reason not in ("step", "goto") or self.interrupted.is_set():
                    break
        if stop is not None:
            self.stopped(stop, first, before)

    def stopped(self, stop: Stop, first: Any = None, before: Any = None) -> None:
        """Shows why and where it stands; does what its breakpoints say. `first`, `before`: where it
        stood before the command, and before its last move.
        """
        self._selected, self.listed = 0, None
        hits = self.points.stopped(stop)
        self._pending.clear()
        if hits and hits[0].commands:
            self._pending.extend(hits[0].commands)
        silent = bool(self._pending) and self._pending[0] == "silent"
        if silent:
            self._pending.popleft()
        else:
            self._show(stop, hits, first, before)
        temporary = [e.number for e in hits if e.temporary]
        for number in temporary:
            del self.points.entries[number]
        if temporary:
            self.points.apply(self.debugger.breakpoints)

    def _show(self, stop: Stop, hits: list[Entry], first: Any, before: Any) -> None:
        *reasons, lead = [*self._reasons(stop, hits), ""]
        if reasons and hits and hits[0].kind in ("break", "log"):
            lead = f"{reasons.pop()}, "
        for line in reasons:
            self.say(line)
        self.ended = stop.reason == "end"
        if self.ended:
            self.show_results()
            self._hint_at_catching()
            return
        frames = self.frames()
        if not frames:
            return
        for line in self._computed(stop, before, frames):
            self.say(line)
        entered = first is None or first[0] != key(frames[0])
        self.show_frame(frames[0], bool(hits) or entered or stop.reason != "step", lead)
        self.show_displays()

    def _hint_at_catching(self) -> None:
        """Says once how to stop where the NaNs and infinities of results are born."""
        stop = self.debugger.stop
        if self._has_hinted or stop is None or stop.exception is not None:
            return
        caught = {e.name for e in self.points.entries.values() if e.kind == "catch"}
        for odd in odd_results(self.debugger.results()):
            kind = "nan" if odd.nan else "inf"
            if kind not in caught:
                where = f"catch {kind} before the run stops where they are born"
                self.say(f"{self.paint('hint:', 'cyan')} {visible(odd.text)}: {where}")
                self._has_hinted = True
                return

    def _reasons(self, stop: Stop, hits: list[Entry]) -> list[str]:
        reasons = []
        for entry in hits:
            title = KINDS[entry.kind].capitalize()
            about = f": {entry.what}" if entry.kind in ("watch", "catch") else ""
            title = f"{title} {entry.number}{self._whose_hits(entry)}{about}"
            reasons.append(self.paint(title, "bold yellow"))
        if stop.exception is not None:
            reasons.append(self._trouble(stop))
        elif stop.reason == "pause":
            reasons.append(self.paint("Paused.", "bold yellow"))
        elif stop.reason == "entry" and self.debugger.position > 0:
            reasons.append("No more history to go back to.")
        elif stop.text and stop.reason in ("entry", "restart", "goto", "step", "waiting"):
            reasons.append(visible(stop.text[:1].upper() + stop.text[1:] + "."))
        return reasons

    def _whose_hits(self, entry: Entry) -> str:
        """Of ranks, those that stopped there."""
        return ""

    def _trouble(self, stop: Stop) -> str:
        problem = stop.exception
        assert problem is not None
        if problem.error is not None:
            return render_all(problem.error.diagnostics, self.paint.on, in_switches)
        return f"{self.paint(problem.kind + ':', 'bold red')} {visible(problem.message)}"

    def _position(self) -> Any:
        """What `_computed` compares with: the frame, and what its statement computes."""
        found = []
        for frame in self.frames():
            found.append((key(frame), self._results(frame), self.debugger.position))
        return (found[0][0], found) if found else None

    def _results(self, frame: Frame) -> list[str]:
        """What its statement computes; of a call in Python not what is kept for the backward."""
        names = defined_names(frame.statement)
        if frame.python is None or len(names) < 2:
            return names
        return self.debugger.stop_point.names.returned.results(frame.statement) or names

    def _computed(self, stop: Stop, before: Any, frames: list[Frame]) -> list[str]:
        """The results of the statements that were left behind, in the frame that is shown."""
        shown = frames[0]
        if before is None or stop.reason == "goto":
            return []
        names: list[str] = []
        for frame, results, position in before[1]:
            if frame == key(shown) and position < self.debugger.position:
                names += results
        if stop.reason == "data":
            names = defined_names(shown.statement)
        if stop.exception is not None and stop.exception.node is not None:
            names = [stop.exception.node.name]
        nodes = {n: shown.lookup(n) for n in names}
        return [
            named_line(self.paint, shown, n, node) for n, node in nodes.items() if node is not None
        ]

    def described(self, frame: Frame) -> str:
        return showing.frame_line(self.paint, frame, showing.arguments_of(frame))

    def lines(self, frame: Frame) -> list[str]:
        """Of a frame's text. They are kept: to cut a large text takes longer than a step."""
        if frame.python:
            return frame.python.at.file.lines
        if self._cut is None or self._cut[0] is not frame.source:
            self._cut = (frame.source, showing.text_lines(frame))
        return self._cut[1]

    def print_value(self, text: str, form: str, lead: str) -> None:
        """Evaluates an expression in the selected frame and prints it."""
        value = self.debugger.evaluate(text, self.frame())
        self.say_value(lead, list(value_lines(self.paint, value, form)))

    def show_displays(self) -> None:
        """What ``display`` asked for, as far as it can be computed here."""
        from opstep.runtime.expressions import ExpressionError

        for number, (form, text) in self.displays.items():
            try:
                self.print_value(text, form, f"{number}: {text} = ")
            except (ExpressionError, OpstepError, Refused):
                continue  # its names are not there yet

    def show_results(self) -> None:
        """The end of the run: what the graph returned."""
        debugger, stop = self.debugger, self.debugger.stop
        no_frames = not self.frames()
        if stop is None or stop.exception is None:
            self.say(self.paint("The run has ended.", "bold"))
            has_result = debugger.outputs is not None or debugger.machine.history.finished
            for name, array in (debugger.result() if has_result else {}).items():
                self.say(f"{self.paint(visible(name), 'bold')} = {array_line(array)}")
        if no_frames:  # there was nothing to stop it, so whole steps were run
            self.say(
                "It ran at full speed, so there is no history to go back to; run starts again."
            )


def defined_names(statement: Any) -> list[str]:
    """The names that a statement gives a value: results, or the named tensor that it updates."""
    from opstep.runtime.ir.graph import Apply, Update

    if isinstance(statement, Apply):
        return [r.name.text for r in statement.results]
    return [statement.target.text] if isinstance(statement, Update) else []


def key(frame: Frame) -> tuple:
    """What tells a frame from others while the run moves."""
    return id(frame.activation), frame.frame, frame.python.level if frame.python else None
