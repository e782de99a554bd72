"""Random sessions: programs, commands, and fresh runs with the same changes to compare with.

A fresh run goes forward only, point by point, and makes each change where its place comes. So it
uses nothing of what a debugger does to go back, to cut, or to keep what was set.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from random_graphs import text_of

import opstep
from opstep.api.debugging import Debugger
from opstep.runtime.debugger.breakpoints import Wanted
from opstep.runtime.debugger.machine import Skipped
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError

POLICIES = {
    "debug": {"mode": "debug"},
    "async": {"mode": "async"},
    "one stream": {"mode": "async", "streams": 1},
    "reuse, filled": {"mode": "debug", "alloc": "reuse"},
    "fresh, four streams": {"mode": "async", "alloc": "fresh", "fill": "nan"},
    "eight streams, reuse": {"mode": "async", "streams": 8, "alloc": "reuse", "fill": "nan"},
}
STEPS = 3

# How often the loop turns, and what the switch takes, depends on the data.
LOOPS = """
state turns: i32[] = 0
state drift: f32[8] = zeros()

graph spin(x: f32[8]) -> f32[8] {
  y, n = while(x, 0, test=small, body=turn, limit=5)
  m = mean(y)
  low = less(m, 0.0)
  which = cast(low, dtype=i32)
  z = switch(which, y, cases=[scaled, leaning])
  d = add(drift, z)
  e = tanh(d)
  drift <- e
  return z
}

graph small(x: f32[8], n: i32[]) -> bool[] {
  m = max(x)
  near = less(m, 2.0)
  few = less(n, 4)
  y = logical_and(near, few)
  return y
}

graph turn(x: f32[8], n: i32[]) -> f32[8], i32[] {
  h = add(x, drift)
  y = add(h, 0.5)
  t = add(turns, 1)
  turns <- t
  k = add(n, 1)
  return y, k
}

graph leaning(x: f32[8]) -> f32[8] {
  y = sub(x, drift)
  return y
}
"""


def program_of(seed: int) -> str:
    text = text_of(seed)
    return LOOPS + text.replace("= heavy(", "= spin(").replace("= work(", "= spin(", 1)


class Change(NamedTuple):
    """What was set: `way` names the activation, `k` the point of one on a named tensor."""

    way: tuple
    name: str
    frame: int
    k: int
    array: np.ndarray
    part: np.ndarray | None
    begin: bool = False  # of a named tensor, where a step begins

    @property
    def named(self) -> bool:
        return self.k >= 0


def way_of(activation: Any) -> tuple:
    """How an activation was called."""
    if activation is None:
        return ()
    own = activation.call, activation.role, activation.turn, activation.plan.graph
    return (*way_of(activation.parent), own)


def shown(debugger: Debugger) -> tuple:
    """All that is shown where one stands: frames, their values, the named tensors."""
    array = debugger.machine.executor.array
    stack = debugger.stack()
    frames = [(f.name, f.line, f.column) for f in stack]
    values = [
        (f.number, name, array(node).tobytes()) for f in stack for name, node in f.names().items()
    ]
    params = stack[0].params() if stack else {}
    return frames, values, [(name, array(node).tobytes()) for name, node in params.items()]


def bits(tensors: Any) -> list[bytes]:
    return [np.asarray(tensors[name]).tobytes() for name in tensors]


class Model:
    """A session, and what was changed in it."""

    def __init__(self, seed: int, policy: dict[str, Any], path: Path, budget: int = 1 << 30):
        self.random = Random(seed)
        self.rng = np.random.default_rng(seed)
        self.policy, self.path, self.budget = policy, path, budget
        self.text = program_of(seed)
        self.texts: dict[int, str] = {}  # of hosts, by their ids
        program = opstep.loads(self.text)
        self.params = {
            name: self.drawn(d.type) for name, d in program.module.tensors.items() if d.init is None
        }
        main = program.graphs["main"]
        self.inputs = {b.name.text: self.drawn(b.type) for b in main.inputs if b.type}
        self.debugger = self.made(self.text)
        self.hosts = [self.debugger.host]
        self.changes: list[Change] = []
        self.lost: list[str] = []
        self.done: list[str] = []
        self.debugger.on_output = self.told
        self.debugger.start()

    def drawn(self, type: Any) -> np.ndarray:
        return self.rng.standard_normal(type.shape).astype(type.dtype.numpy)

    def told(self, text: str, frame: Any) -> None:
        if text.startswith("No longer as they were set by hand: "):
            self.lost += text.partition(": ")[2].rstrip(".").split(", ")

    def made(self, text: str) -> Debugger:
        self.path.write_text(text)
        program = opstep.load(self.path)
        program.params.update(self.params)
        debugger = Debugger(
            program, "main", self.inputs, steps=STEPS, stop_on_entry=True,
            memory_budget=self.budget, **self.policy,
        )  # fmt: skip
        self.texts[id(debugger.host)] = text
        return debugger

    # --- commands ---

    def command(self) -> None:
        """One at random."""
        name = self.random.choice(
            ["in"] * 4 + ["over"] * 3 + ["out", "back", "back", "finish", "end", "reverse", "begin"]
            + ["goto", "frame"] + ["set"] * 6 + ["named"] * 2 + ["reload", "restart", "breakpoint"]
        )  # fmt: skip
        self.play(name)

    def play(self, name: str) -> None:
        self.done.append(name)
        stood = self.debugger.position
        getattr(self, f"do_{name}", lambda: self.debugger.go(name))()
        self.done[-1] += f" {stood}->{self.debugger.position}"
        for name in self.lost:
            self.forget_lost(name)
        self.lost.clear()

    def do_finish(self) -> None:
        self.debugger.go("out")

    def do_end(self) -> None:
        self.debugger.breakpoints.set_lines(str(self.path), [])
        stop = self.go_on()
        assert stop.reason == "end" or stop.text == "assert", stop

    def go_on(self) -> Any:
        """Continues; where whole steps went at full speed, what came of them is compared."""
        fresh = Fresh(self)
        stop = self.debugger.go("continue")
        if isinstance(stop.exception and stop.exception.error, Skipped):
            self.do_restart()  # it jumped over what is needed now
            return self.go_on()
        if self.debugger.outputs is not None:
            self.done[-1] += " at full speed"
            assert stop.reason == "end"
            fresh.finish()
            assert bits(self.debugger.result()) == bits(fresh.debugger.result()), self.done
            assert bits(self.debugger.program.params) == bits(fresh.debugger.program.params)
            self.do_restart()
        return stop

    def do_reverse(self) -> None:
        self.debugger.go("reverse_continue")

    def do_begin(self) -> None:
        self.debugger.breakpoints.set_lines(str(self.path), [])
        self.debugger.go("reverse_continue")

    def do_breakpoint(self) -> None:
        line = self.random.randrange(1, self.text.count("\n") + 1)
        self.debugger.breakpoints.set_lines(str(self.path), [Wanted(line=line)])
        if self.random.random() < 0.5:
            self.go_on()
        else:
            self.debugger.go("reverse_continue")

    def do_goto(self) -> None:
        line = self.random.randrange(1, self.text.count("\n") + 1)
        targets = self.debugger.goto_targets(str(self.path), line)
        if targets:
            try:
                self.debugger.goto(targets[0].number)
            except OpstepError:  # an operand would have no value
                self.done[-1] += "!"

    def do_frame(self) -> None:
        frames = self.debugger.stack()
        if frames:
            self.debugger.restart_frame(self.random.choice(frames))

    def do_restart(self) -> None:
        self.debugger.restart()
        self.changes.clear()

    def do_reload(self) -> None:
        if not self.debugger.stack():
            return
        if self.random.random() < 0.7:
            number = f"0.{self.random.randrange(1, 100)}"
            start, _, rest = self.text.partition("graph scaled")
            first, _, last = rest.partition("\n  y = mul(x, ")
            self.text = (
                f"{start}graph scaled{first}\n  y = mul(x, {number})" + last.partition(")")[2]
            )
        self.path.write_text(self.text)
        here = (
            self.debugger.machine.history.next_point() or self.debugger.machine.history.last_point()
        )
        step = way_of(here[0])[0][2]
        lost = self.debugger.reload().dropped
        self.texts[id(self.debugger.host)] = self.text
        self.hosts.append(self.debugger.host)
        kept = []
        for change in self.changes:
            at = change.way[0][2] if change.way else STEPS
            if at < step:
                kept.append(change)
            elif at == step and change.begin:
                kept.append(change._replace(k=0))
            else:
                assert change.name in lost
        self.changes = kept

    def do_set(self) -> None:
        frames = self.debugger.stack()
        if not frames:
            return
        frame = self.random.choice(frames)
        names = list(frame.names())
        if not names:
            return
        name = self.random.choice(names)
        way = way_of(frame.activation)
        self.change(frame, name, Change(way, name, frame.frame, -1, *self.value(frame, name)))

    def do_named(self) -> None:
        frames = self.debugger.stack()
        if not frames:
            return
        frame, machine = frames[0], self.debugger.machine
        name = self.random.choice(list(machine.host.tensors))
        here = machine.history.next_point()
        way, k = (way_of(here[0]), machine.history.index()) if here else ((), 0)
        begin = len(way) == 1 and here[0].start == machine.history.cursor
        self.change(frame, name, Change(way, name, 0, k, *self.value(frame, name), begin))

    def value(self, frame: Any, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        node = frame.lookup(name)
        array = np.array(self.debugger.machine.executor.array(node))
        random = self.random
        if array.dtype == bool:
            new = self.rng.integers(0, 2, array.shape).astype(bool)
        elif array.dtype.kind == "i":
            new = self.rng.integers(0, 2, array.shape).astype(array.dtype)
        else:
            new = self.drawn(node.type) * np.float32(random.choice([1, 1, 30]))
        if array.ndim and random.random() < 0.5:
            part = self.rng.random(array.shape) < 0.3
            return np.where(part, new, array), part
        return np.asarray(new), None

    def change(self, frame: Any, name: str, change: Change) -> None:
        self.done[-1] += f" {frame.name}.{name}"
        if frame.activation.points.named.get(frame.value(name)):
            with pytest.raises(InputError, match="itself"):
                self.debugger.set(frame, name, change.array, change.part)
            return
        self.debugger.set(frame, name, change.array, change.part)
        self.changes.append(change)

    def forget_lost(self, name: str) -> None:
        """It was told that what was set of this name holds no longer. Which place it was is found
        by what the log has: those that it passed without them.
        """
        reached = {way_of(a) for a, _ in self.debugger.machine.history.log}
        self.changes = [
            c for c in self.changes if c.name != name or self.holds(c, reached)
        ]  # fmt: skip

    def holds(self, change: Change, reached: set) -> bool:
        from opstep.runtime.debugger.changes import Change as Made

        made: list[Made] = self.debugger.machine.history.changes._all
        step = change.way[0][2] if change.way else inf
        return any(
            np.array_equal(m.array, change.array, equal_nan=change.array.dtype.kind == "f")
            and (m.name, m.location[0]) == (change.name, step)
            and (not change.named or not change.way or m.location[-1] == change.k)
            for m in made
        )

    # --- fresh runs ---

    def compare(self) -> int:
        """Every point of the log against a fresh run; gives how many there are."""
        debugger, machine = self.debugger, self.debugger.machine
        stands = machine.history.cursor
        fresh = Fresh(self)
        for position in range(machine.history.base, machine.history.frontier + 1):
            machine.history.cursor = position
            fresh.arrive()
            ours, theirs = shown(debugger), shown(fresh.debugger)
            if ours != theirs:
                raise AssertionError(self.told_of(position, ours, theirs))
            if position < machine.history.frontier:
                fresh.forward()
        if machine.history.at is None:  # else they are still to come
            assert not fresh.left, f"never reached: {fresh.left}\n{self.done}"
        machine.history.cursor = stands
        return machine.history.frontier + 1 - machine.history.base

    def told_of(self, position: int, ours: tuple, theirs: tuple) -> str:
        what = [f"at {position}: {self.policy}", *self.done, f"changes: {self.changes}"]
        for a, b in zip(ours, theirs, strict=True):
            what += [f"{x[:2]} | {y[:2]}" for x, y in zip(a, b, strict=False) if x != y]
            what.append(f"{len(a)} | {len(b)}")
        return "\n".join(map(str, what))


class Fresh:
    """A run that goes forward only, with the changes of a session."""

    def __init__(self, model: Model):
        self.model = model
        self.left = list(model.changes)
        machine = model.debugger.machine
        roots = {a.turn: a.host for a, _ in machine.history.log if a.parent is None}
        if machine.history.at is not None:
            found = [a for a in machine.history.active() if a.parent is None]
            roots[found[0].turn] = found[0].host
        self.roots = roots
        self.text = model.texts[id(roots[0])] if 0 in roots else model.text
        self.debugger = model.made(self.text)
        self.debugger.start()

    def arrive(self) -> None:
        """Another text from here on, and the changes that belong here."""
        fresh = self.debugger
        here = fresh.machine.history.next_point()
        if here and here[0].parent is None and fresh.machine.history.index() == 0:
            host = self.roots.get(here[0].turn)
            wanted = self.model.texts[id(host)] if host is not None else self.model.text
            if wanted != self.text:
                self.text = wanted
                self.model.path.write_text(wanted)
                fresh.reload()
        self.change()
        if self.jump():
            self.change()

    def change(self) -> None:
        fresh = self.debugger
        way, k = self.where()
        for change in [c for c in self.left if c.named]:
            if (change.way, change.k) == (way, k):
                fresh.set(fresh.stack()[0], change.name, change.array, change.part)
                self.left.remove(change)
        for change in [c for c in self.left if not c.named]:
            frame = self.frame(change)
            if frame is not None and frame.names().get(change.name) is not None:
                fresh.set(frame, change.name, change.array, change.part)
                self.left.remove(change)

    def finish(self) -> None:
        """To the end of the run."""
        self.arrive()
        while self.debugger.machine.forward():
            self.arrive()
        self.debugger.go("continue")

    def where(self) -> tuple[tuple, int]:
        here = self.debugger.machine.history.next_point()
        return (way_of(here[0]), self.debugger.machine.history.index()) if here else ((), 0)

    def frame(self, change: Change) -> Any:
        """The frame of a change, where it is on the stack or was just left."""
        from opstep.runtime.debugger.frames import innermost

        machine = self.debugger.machine
        for at in (machine.history.next_point(), machine.history.last_point()):
            activation = at[0] if at else None
            while activation is not None:
                if way_of(activation) == change.way:
                    point = activation.points[0]._replace(frame=change.frame)
                    return innermost(machine, (activation, point), machine.history.cursor)
                activation = activation.parent
        return None

    def forward(self) -> None:
        """One point."""
        self.debugger.machine.forward()

    def jump(self) -> bool:
        """Where the session jumped, it jumps."""
        machine, theirs = self.debugger.machine, self.model.debugger.machine.history
        if not theirs.base <= machine.history.cursor <= theirs.frontier:
            return False  # it was at full speed there
        if machine.history.cursor < theirs.frontier:
            wanted = theirs.log[machine.history.cursor - theirs.base][1]
        else:
            wanted = theirs.pc if theirs.at is not None else None
        if wanted is None or machine.history.at is None or machine.history.pc >= wanted:
            return False
        if way_of(machine.history.at) != self.wanted_way(theirs, machine.history.cursor):
            return False
        machine.jump(wanted)
        return True

    def wanted_way(self, theirs: Any, position: int) -> tuple:
        log = theirs.log
        at = log[position - theirs.base][0] if position < theirs.frontier else theirs.at
        return way_of(at)
