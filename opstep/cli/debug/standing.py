"""A session that stands somewhere: frames, of which one is selected, and lines of their files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from opstep.cli.debug import showing
from opstep.cli.debug.dialogue import Dialogue
from opstep.cli.debug.registry import Refused
from opstep.runtime.ir.diagnostics import visible


class Shown(NamedTuple):
    """Lines of a file, and the one after the last that ``list`` has shown."""

    lines: list[str]
    path: str
    next: int


class Standing(Dialogue, ABC):
    """A frame has a `number`, a `path` and a `line`; the innermost is 0."""

    def __init__(self, paint: showing.Paint, interactive: bool):
        super().__init__(paint, interactive)
        self.listed: Shown | None = None
        self._selected = 0

    @abstractmethod
    def frames(self) -> Sequence[Any]:
        """The innermost first."""

    @abstractmethod
    def lines(self, frame: Any) -> list[str]:
        """Of the file that a frame is in."""

    @abstractmethod
    def described(self, frame: Any) -> str:
        """A frame in a line."""

    def frame(self) -> Any:
        """The one that is selected. Raises `Refused`."""
        frames = self.frames()
        if not frames:
            raise Refused("there is no stack")
        return frames[min(self._selected, len(frames) - 1)]

    def select(self, number: int) -> Any:
        """Raises `Refused`."""
        count = len(self.frames())
        if not 0 <= number < count:
            raise Refused(f"there is no frame {number}", f"there are 0 to {count - 1}")
        self._selected, self.listed = number, None
        return self.frame()

    def say_value(self, lead: str, lines: Sequence[str]) -> None:
        """A value of several lines begins on a line of its own."""
        if len(lines) == 1:
            self.say(f"{self.paint(visible(lead), 'bold')}{lines[0]}")
            return
        if lead:
            self.say(self.paint(visible(lead.rstrip()), "bold"))
        for line in lines:
            self.say(f"  {line}")

    def show_frame(self, frame: Any, heading: bool = True, lead: str = "", end: str = "") -> None:
        """A frame and the lines around where it stands."""
        if heading:
            self.say(lead + self.described(frame) + end)
        lines, line = self.lines(frame), frame.line
        first = line - showing.AROUND
        for text in showing.excerpt(self.paint, lines, first, line + showing.AROUND, line):
            self.say(text)
