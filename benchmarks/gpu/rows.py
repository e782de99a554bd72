"""A line of the GPU benchmark's table: our figure, a peer's, and what must be reached."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

GROUPS: list[tuple[str, Callable[[], Iterable[Row]]]] = []


class Row(NamedTuple):
    """`ratio` is ours over the peer's; `reached` is None where there is no bar."""

    what: str
    ours: float
    unit: str
    peer_name: str = ""
    peer: float | None = None
    bar: str = ""
    reached: bool | None = None
    error: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.peer else None


def group(name: str):
    """Registers a function that measures some rows."""

    def register(function: Callable[[], Iterable[Row]]):
        GROUPS.append((name, function))
        return function

    return register


def at_most(times: float, what: str, ours: float, unit: str, peer_name: str, peer: float) -> Row:
    """Ours is at most `times` the peer's."""
    bar = f"≤ {times:g}x {peer_name}"
    return Row(what, ours, unit, peer_name, peer, bar, ours <= times * peer)


def at_least(share: float, what: str, ours: float, unit: str, peer_name: str, peer: float) -> Row:
    """Ours is at least `share` of the peer's."""
    bar = f"≥ {share:.0%} of {peer_name}" if share < 2 else f"≥ {share:g}x {peer_name}"
    return Row(what, ours, unit, peer_name, peer, bar, ours >= share * peer)


def plain(what: str, ours: float, unit: str, peer_name: str, peer: float) -> Row:
    """For comparison, without a bar."""
    return Row(what, ours, unit, peer_name, peer)


def by_turns(calls: dict[str, Callable[[], Any]], rounds: int = 15, warmup: int = 3):
    """Median seconds of each call, by name, taken by turns; each ends when its work is done."""
    for call in calls.values():
        for _ in range(warmup):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
            start = time.perf_counter()
            calls[name]()
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in samples.items()}


def in_rows(
    calls: dict[str, Callable[[], Any]], wait: Callable[[], Any], rounds: int = 9, calls_a_turn=8
):
    """Median seconds of a call among others of its kind, by name, taken by turns of so many calls:
    nobody waits between them, as in training. A turn begins with three that are not timed.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, rounds):
        for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
            for _ in range(3):
                calls[name]()
            wait()
            start = time.perf_counter()
            for _ in range(calls_a_turn):
                calls[name]()
            wait()
            if turn >= 0:
                samples[name].append((time.perf_counter() - start) / calls_a_turn)
    return {name: statistics.median(found) for name, found in samples.items()}
