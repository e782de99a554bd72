"""Where commands lead, against a model: a list of places, and a cursor that moves over it.

At each position a session can stand behind the op that was just passed, and before the point that
is next; so a place is a position and one of the two. A command leads to the nearest place, ahead or
back, where something stops it. The list is read from the log, which `test_truth` compares with
fresh runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from debugger.sessions_at_random import POLICIES, Model
from debugger.test_truth import SESSIONS

from opstep.runtime.debugger.activation import OP
from opstep.runtime.debugger.breakpoints import Wanted
from opstep.runtime.debugger.checks import hidden
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.runner import depth_of

BEHIND, BEFORE = 0, 1  # the op that was passed, the point that is next
WATCHED = ("h", "k", "t", "near")  # results of ops in loops
Place = tuple[int, int]


class Visit(NamedTuple):
    """A point that was passed, or is next at the frontier."""

    statement: int
    activation: Any
    frame: int
    depth: int
    hidden: bool
    enters: bool
    changed: bool  # a watched value, by its op


class Navigator(Model):
    """A session that predicts each of its stops from the log. `lines`: breakpoints."""

    def __init__(self, seed: int, path: Any):
        super().__init__(seed, list(POLICIES.values())[seed % len(POLICIES)], path)
        self.lines: set[int] = set()
        self.watched: set[str] = set()
        self.debugger.breakpoints.set_filters({"device": None})  # no step goes at full speed
        self.kept: list[Any] = []  # statements, so that no other has the id of one

    # --- the model ---

    def visits(self) -> list[Visit]:
        """From the oldest that is remembered on."""
        history = self.debugger.machine.history
        log = [*history.log] + ([(history.at, history.pc)] if history.at else [])
        found, last = [], {}
        for activation, k in log:
            point = activation.points[k]
            own = activation.plan.frames[point.frame].graph.name.text
            changed = False
            for v in activation.plan.steps[point.step].results if point.kind == OP else ():
                name = activation.plan.values[v].name
                if self.watched & {name, f"{own}.{name}"} and v in activation.env:
                    key, node = (id(activation.points), v), activation.env[v][1]
                    bits = self.debugger.machine.executor.array(node).tobytes()
                    changed = changed or last.get(key) != bits
                    last[key] = bits
            at = activation, point
            self.kept.append(point.statement)
            found.append(
                Visit(
                    id(point.statement), activation, point.frame, depth_of(at), hidden(at),
                    k in activation.points.entered, changed,
                )
            )  # fmt: skip
        return found

    def stops(self, visits: list[Visit], place: Place) -> bool:
        """Whether a breakpoint does."""
        position, side = place
        if side == BEHIND:
            return position > 0 and visits[position - 1].changed
        lines = self.statements()
        return position < len(visits) and visits[position].statement in lines and not (
            visits[position].hidden
        )  # fmt: skip

    def statements(self) -> set[int]:
        table = self.debugger.breakpoints.by_statement
        return {key for key, found in table.items() if found}

    def place(self) -> Place:
        debugger = self.debugger
        behind = debugger.stop_point.after_op
        return debugger.position - debugger.machine.history.base, BEHIND if behind else BEFORE

    def depth(self, visits: list[Visit], place: Place) -> int | None:
        """Of what is shown."""
        position, side = place
        shown = position - 1 if side == BEHIND else position
        return visits[shown].depth if shown < len(visits) else None

    def ahead(self, visits: list[Visit], place: Place, arrives: Any) -> Place | None:
        """The nearest place; None where the log ends before."""
        position, side = place
        if side == BEHIND:
            nearest = (position, BEFORE)
            if self.stops(visits, nearest):
                return nearest
        for at in range(position + 1, len(visits)):
            for next_place in ((at, BEHIND), (at, BEFORE)):
                if self.stops(visits, next_place):
                    return next_place
            if arrives(visits[at]) and not visits[at].hidden:
                return at, BEFORE
        return None

    def back(self, visits: list[Visit], place: Place, arrives: Any, step: bool) -> Place:
        position, side = place
        if side == BEFORE and not step and self.stops(visits, (position, BEHIND)):
            return position, BEHIND
        for at in range(position - 1, -1, -1):
            if self.stops(visits, (at, BEFORE)):
                return at, BEFORE
            if arrives(visits[at]) and not visits[at].hidden:
                return at, BEFORE
            if self.stops(visits, (at, BEHIND)):
                return at, BEHIND
        return 0, BEFORE

    # --- commands ---

    def step(self, name: str) -> None:
        """Makes one, and compares where it led."""
        place, before = self.place(), self.visits()
        depth = self.depth(before, place)
        arrives = {
            "continue": lambda v: False,
            "reverse_continue": lambda v: False,
            "in": lambda v: True,
            "back_in": lambda v: True,
            "over": lambda v: v.depth <= depth,
            "back": lambda v: depth is None or v.depth <= depth,
            "out": lambda v: v.depth < depth,
            "back_out": lambda v: depth is None or v.depth < depth,
        }[name]
        base = self.debugger.machine.history.base
        stop = self.debugger.go(name)
        after = self.visits()
        self.done.append(f"{name} {place}->{self.place()} {stop.reason}")
        moved = self.debugger.machine.history.base - base
        if "back" in name or name == "reverse_continue":
            wanted = self.back(before, place, arrives, name != "reverse_continue")
        elif name in ("in", "over") and place[1] == BEHIND and place[0] < len(before):
            wanted = place[0], BEFORE
        else:
            wanted = self.ahead(after, (place[0] - moved, place[1]), arrives)
            if wanted is None:
                assert stop.reason == "end", self.done
                return
        assert self.place() == wanted, (self.policy, self.done)

    def go_to(self) -> None:
        """The last visit before; else the next; else ahead in the frame."""
        (position, side), visits = self.place(), self.visits()
        base = self.debugger.machine.history.base
        line = self.random.randrange(1, self.text.count("\n") + 1)
        starts = self.debugger.breakpoints.at_line(str(self.path), line)
        wanted = {id(s.statement) for s in starts}
        there = [p for p, v in enumerate(visits) if v.statement in wanted and not v.hidden]
        there = [p for p in there if p < self.debugger.machine.history.frontier - base]
        found = [p for p in there if p < position][-1:]
        found = found or [p for p in there if p > position or (p == position and side == BEHIND)]
        targets = self.debugger.goto_targets(str(self.path), line)
        assert [t.position - base for t in targets if t.position >= 0] == found[:1], self.done
        if targets and targets[0].position >= 0:
            self.debugger.goto(targets[0].number)
            self.done.append(f"goto {line} {position, side}->{self.place()}")
            assert self.place() == (found[0], BEFORE)
            assert self.debugger.stack()[0].line == targets[0].line

    def restart_a_frame(self) -> None:
        frames = self.debugger.stack()
        if not frames:
            return
        frame = self.random.choice(frames)
        position, visits = self.place()[0], self.visits()
        self.debugger.restart_frame(frame)
        self.done.append(f"frame {frame.name} {position}->{self.place()}")
        entered = [
            p for p, v in enumerate(visits[: position + 1])
            if v.enters and (v.activation, v.frame) == (frame.activation, frame.frame)
        ]  # fmt: skip
        assert self.place() == (entered[-1], BEFORE), self.done
        assert self.same(frame, self.debugger.stack()[0])

    def same(self, one: Frame, other: Frame) -> bool:
        return (one.activation, one.frame) == (other.activation, other.frame)

    def run_to_a_line(self) -> None:
        line = self.random.randrange(1, self.text.count("\n") + 1)
        starts = self.debugger.breakpoints.at_line(str(self.path), line)
        if not starts:
            return
        wanted, place = {id(s.statement) for s in starts}, self.place()
        stop = self.debugger.run_to(str(self.path), line)
        self.done.append(f"run to {line} {place}->{self.place()} {stop.reason}")
        found = self.ahead(self.visits(), place, lambda v: v.statement in wanted)
        assert self.place() == found if found else stop.reason == "end", self.done

    def break_somewhere(self) -> None:
        count = self.random.randrange(3)
        self.lines = {self.random.randrange(1, self.text.count("\n") + 1) for _ in range(count)}
        self.debugger.breakpoints.set_lines(str(self.path), [Wanted(line=n) for n in self.lines])
        self.watched = set(self.random.sample(WATCHED, self.random.randrange(2)))
        self.debugger.breakpoints.set_data([Wanted(name=n) for n in self.watched])
        self.done.append(f"lines {self.lines} watched {self.watched}")

    def change_something(self) -> None:
        self.play(self.random.choice(["set", "set", "named", "reload"]))

    def act(self) -> None:
        name = self.random.choice(
            ["in"] * 4 + ["over"] * 4 + ["back"] * 4 + ["back_in"] * 3 + ["out", "back_out"] * 2
            + ["continue"] * 3 + ["reverse_continue"] * 3 + ["goto"] * 5 + ["frame"] * 2
            + ["line", "break", "break", "change"]
        )  # fmt: skip
        own = {
            "goto": self.go_to, "frame": self.restart_a_frame, "line": self.run_to_a_line,
            "break": self.break_somewhere, "change": self.change_something,
        }.get(name)  # fmt: skip
        own() if own else self.step(name)


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_commands_lead_where_the_log_says(seed, tmp_path):
    session = Navigator(seed, tmp_path / "model.opg")
    for _ in range(60):
        session.act()
