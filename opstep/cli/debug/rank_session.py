"""A session on several ranks, which are debugged as one: what it shows beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.cli.debug import showing
from opstep.cli.debug.session import Session
from opstep.cli.debug.values import array_line
from opstep.runtime.debugger.ranks.comparing import listed
from opstep.runtime.debugger.ranks.lockstep import RankDebugger
from opstep.runtime.ir.diagnostics import visible

if TYPE_CHECKING:
    from opstep.cli.debug.points import Entry
    from opstep.runtime.debugger.debugger import Stop


class RankSession(Session):
    """`debugger` is that of the rank that one looks at."""

    def __init__(self, debugger: RankDebugger, paint: showing.Paint, interactive: bool):
        super().__init__(debugger, paint, interactive)
        self.group = debugger.group
        self._shown = 0  # the rank that was shown last

    @property
    def prompt(self) -> str:
        return f"(opstep rank {self.rank}{' alone' if self.group.alone else ''}) "

    @property
    def rank(self) -> int:
        return self.group.current

    @property
    def whose(self) -> str:
        name = dict(self.debugger.threads())
        return name[self.group.thread(self.rank) if self.thread is None else self.thread]

    def choose(self, thread: int | None) -> None:
        if thread is None:
            self.thread = None
            return
        member, stream = self.group.at(thread)
        self.debugger, self.group.current = member, member.rank
        self.thread = None if stream is None else thread
        self._shown = member.rank
        self.look_for_end()

    def look_for_end(self) -> None:
        """Whether what commands move has ended."""
        moved = [self.rank] if self.group.alone else range(len(self.group.members))
        self.ended = self.started and all(map(self.group.world.has_ended, moved))

    def moved(self) -> None:
        self.debugger = self.group.members[self.rank]
        if self.thread is not None and self.group.at(self.thread)[0] is not self.debugger:
            self.thread = None

    # --- what is shown ---

    def _show(self, stop: Stop, hits: list[Entry], first: Any, before: Any) -> None:
        if self._shown != self.rank:
            self.say(f"[Switching to rank {self.rank}]")
            self._shown = self.rank
        super()._show(stop, hits, first, before)
        for line in self.others():
            self.say(self.paint(line, "dim"))

    def _whose_hits(self, entry: Entry) -> str:
        number = entry.core.number if entry.core else -1
        caught = entry.name if entry.kind == "catch" else ""
        ranks = sorted(
            rank
            for rank, stop in self.group.stops.items()
            if number in stop.hits or (stop.exception and stop.exception.kind == caught)
        )
        return f" on {listed(ranks)}" if ranks else f" on rank {self.rank}"

    def _trouble(self, stop: Stop) -> str:
        problem = stop.exception
        text = super()._trouble(stop)
        return text if problem and problem.kind == "deadlock" else f"{self.debugger.label}{text}"

    def others(self) -> list[str]:
        """Where ranks are that are not where this one is."""
        here, places = self._place(self.rank), {}
        for member in self.group.members:
            place = self._place(member.rank)
            if place != here and member.rank != self.rank:
                places.setdefault(place, []).append(member.rank)
        return [
            f"{listed(ranks)} {text if len(ranks) == 1 else text.replace('is at', 'are at')}"
            for text, ranks in places.items()
        ]

    def _place(self, rank: int) -> str:
        member, stop = self.group.members[rank], self.group.members[rank].stop
        if self.started and self.group.world.has_ended(rank):
            return "at the end"
        frames = member.stack()
        if not frames:
            return "not begun"
        waits = stop.text.partition(" waits ")[2] if stop and stop.reason == "waiting" else ""
        where = f"is at {showing.shown_path(frames[0].path)}:{frames[0].line}"
        return f"{where}, where it waits {waits}" if waits else where

    def show_results(self) -> None:
        """Of rank 0, and of others where they have other bits."""
        stop = self.debugger.stop
        if stop is not None and stop.exception is not None:
            return
        self.say(self.paint("The run has ended.", "bold"))
        for name, array in self.debugger.results().items():
            self.say(f"{self.paint(visible(name), 'bold')} = {array_line(array)}")
