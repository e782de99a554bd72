"""Stops at ops, as far as PyTorch need not be there: what is asked for waits until it is imported.

The proxy calls `OpStops` by the helper; an expression that it has the script's thread evaluate
calls `step`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from opstep.debuggee.main_thread import on_main_thread
from opstep.frontends.debugging.breakpoints import Breakpoint
from opstep.frontends.debugging.listed import listed
from opstep.frontends.debugging.names import ModulePath, Pattern, complaint

_ASKING = "opstep.frontends.torch.debugging.asking"


class OpStops:
    """`filters`: of NaNs, which are on."""

    def __init__(self, filters: Callable[[], list[str]]):
        global _stops
        _stops = self
        self.filters = filters
        self.breakpoints: list[Breakpoint] = []
        self.waits_for: Callable[[], None] | None = None  # is called once PyTorch is there

    @property
    def is_any(self) -> bool:
        return bool(self.breakpoints or self.waits_for or listed)

    def set(self, breakpoints: list[dict[str, Any]]) -> list[str]:
        """In place of those before. Gives for each why it will not stop the script."""
        found, complaints = [], []
        for one in breakpoints:
            entry = Breakpoint(
                one["id"], ModulePath.of(one["name"]) or Pattern.of(one["name"]),
                one.get("condition") or "", one.get("hitCondition") or "",
            )  # fmt: skip
            text = entry.complaint()
            if entry.pattern is None:
                text = f"{one['name'].strip()} is not the name of an op"
            if not text:
                found.append(entry)
            text = text or (complaint(entry.pattern) if isinstance(entry.pattern, Pattern) else "")
            complaints.append(text)
        self.breakpoints = found
        if self.changed():
            on_main_thread(self.begin)
        return complaints

    def changed(self) -> bool:
        """Ops are asked for as is wanted now; or else the script's thread has to `begin`."""
        asking = sys.modules.get(_ASKING)
        if asking is None:
            return self.is_any and hasattr(sys.modules.get("torch"), "compile")
        asking.asking.breakpoints = self.breakpoints
        if asking.asking.session is None and asking.asking.is_any:
            return True
        asking.asking.begin(self.filters())
        return False

    def arrived(self) -> None:
        """PyTorch was imported, in this thread."""
        if self.is_any:
            self.begin()
            if self.waits_for is not None:
                self.waits_for()
                self.waits_for = None

    def begin(self) -> None:
        """In the script's thread."""
        from opstep.frontends.torch.debugging import asking

        asking.asking.breakpoints = self.breakpoints
        asking.asking.begin(self.filters())

    def stop(self) -> dict[str, Any]:
        """At which the script stands, or stood last."""
        asking = sys.modules.get(_ASKING)
        return asking.asking.stop if asking is not None else {}

    def cancel(self) -> None:
        """The script stands somewhere: its step by ops is over."""
        self.waits_for = None
        asking = sys.modules.get(_ASKING)
        if asking is not None and asking.asking.step is not None:
            asking.asking.step = None
            self.changed()


_stops: OpStops


def changed() -> bool:
    return _stops.changed()


def list_op(place: tuple[str, int]) -> None:
    """The op at which the program stands, if that is at a place, is the first that is listed."""
    asking = sys.modules.get(_ASKING)
    if asking is not None:
        asking.list_op(place)


def watch_tensors(watches: list[Any]) -> None:
    """Stops where an op writes what these `lines.Watch`es have seen; on the script's thread."""
    asking = sys.modules.get(_ASKING)
    if asking is None and not watches:
        return
    if asking is None:
        from opstep.frontends.torch.debugging import asking
    had, asking.asking.watches = bool(asking.asking.watches), watches
    if had != bool(watches):
        asking.asking.begin(_stops.filters())


def begin() -> None:
    _stops.begin()


def step(over: bool) -> None:
    """The thread that evaluates this stops after its next op."""
    if not hasattr(sys.modules.get("torch"), "compile"):
        _stops.waits_for = lambda: step(False)
        return
    from opstep.frontends.torch.debugging import asking

    asking.step(over)
    asking.asking.begin(_stops.filters())
