"""Values that are set by hand: made where they belong, and again whenever that is passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Activation
from opstep.runtime.debugger.changes import (
    Change,
    Location,
    definition_point,
    frames_of,
    location_of,
)
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.history import History
from opstep.runtime.debugger.node import Node
from opstep.runtime.ir.errors import InputError


class Edits:
    """Of one history. `on_lost` is told the names of those that hold no longer."""

    def __init__(
        self, history: History, executor: Executor, on_lost: Callable[[list[str]], object]
    ):
        self.history = history
        self.executor = executor
        self.on_lost = on_lost

    def set(
        self, activation: Activation, value: int, frame: int, name: str, array: np.ndarray,
        part: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """A value of an activation, as a frame sees it, is another one from where it came on: the
        cursor is there then. `part`: which elements are given, None for all. Raises `InputError`.
        """
        history, since = self.history, activation.env[value][0]
        if since < history.base:
            hint = "set something newer, or begin anew"
            raise InputError(f"what was computed from {name} is not remembered any more", hint=hint)
        history.cut(since)
        location = location_of(activation, definition_point(activation, value))
        frames = frames_of(activation, value, frame)
        change = Change(name, activation.points, value, location, array, part, frames)
        history.changes.add(change, since)
        self._change_value(activation, value, location)

    def set_named(self, name: str, array: np.ndarray, part: np.ndarray | None = None) -> None:
        """From the cursor on, a named tensor is another one."""
        history = self.history
        history.cut()
        change = Change(name, self._next(), -1, history.location(), array, part)
        history.changes.add(change, history.cursor)
        self._change_named(change)

    def arrived(self) -> None:
        """Another point is next at the frontier: changes that belong there are made again."""
        history = self.history
        location = history.location()
        for change in history.changes.pop_due(self._next(), -1, location):
            change.position = history.frontier
            self._change_named(change)
        dropped = history.changes.drop_passed(location)
        if dropped:
            self.on_lost(dropped)

    def give(self, activation: Activation, value: int, since: int, node: Node, k: float) -> None:
        """A value is there, which the point `k` of its activation gave."""
        activation.env[value] = (since, node)
        changes = self.history.changes
        if (id(activation.points), value) in changes.waiting:
            location = location_of(activation, k)
            for change in changes.pop_due(activation.points, value, location):
                change.position = since
            self._change_value(activation, value, location)

    def _next(self) -> Any:
        """The plan that is under way at the frontier; None between two steps, whatever they run."""
        at = self.history.at
        return None if at is None or (at.parent is None and not self.history.pc) else at.points

    def _change_value(self, activation: Activation, value: int, location: Location) -> None:
        """Makes all changes of a value, in place of those that were made before."""
        since = activation.env[value][0]
        node = activation.drop(value)
        assert node is not None
        changes = self.history.changes.active_on(activation.points, value, location)
        versions = [node]
        for change in changes:
            if change.frames is None:
                versions.append(change.of(versions[-1], self.executor))
                continue
            for frame in change.frames:
                scoped = activation.scoped.setdefault((value, frame), versions[:])
                scoped.append(change.of(scoped[-1], self.executor))
        activation.env[value] = (since, versions[-1])
        if versions[1:]:
            activation.replaced[value] = [(since, since, n) for n in versions[:-1]]

    def _change_named(self, change: Change) -> None:
        """What is under way finds the named tensor changed, too."""
        name, position = change.name, change.position
        assert position is not None
        latest = self.history.named.of(name)[-1][1]
        self.history.named.add(name, position, change.of(latest, self.executor))
        for activation in self.history.active():
            for value, tensor in activation.points.named.items():
                if tensor == name and value in activation.env:
                    since, old = activation.env[value]
                    activation.replaced.setdefault(value, []).append((position, since, old))
                    activation.env[value] = (position, change.of(old, self.executor))
