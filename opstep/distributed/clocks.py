"""What the clocks of ranks on other machines say, beside that of rank 0.

A rank is asked for its time several times. That of the shortest round trip counts, and is taken to
have been read in the middle of it (Cristian 1989), so it is wrong by at most half of that trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from opstep.runtime.device.ranks import Ranks

_TRIES = 16


class Reading(NamedTuple):
    """A rank's time and rank 0's at one moment, and by how much they may be apart; ns."""

    theirs: int
    ours: int
    error: int


def read(ranks: Ranks, now: Callable[[], int] = time.monotonic_ns) -> dict[int, Reading]:
    """On rank 0 the clocks of all others. All ranks call this at the same time."""
    message = np.zeros(1, np.int64)
    if ranks.index:
        for _ in range(_TRIES):
            ranks.recv(message, 0)
            ranks.send(np.array([now()], np.int64), 0)
        return {}
    return {rank: _of(ranks, rank, now) for rank in range(1, ranks.size)}


def _of(ranks: Ranks, rank: int, now: Callable[[], int]) -> Reading:
    found = []
    for _ in range(_TRIES):
        began = now()
        ranks.send(np.array([began], np.int64), rank)
        theirs = int(ranks.recv(np.zeros(1, np.int64), rank)[0])
        ended = now()
        found.append(Reading(theirs, (began + ended) // 2, (ended - began + 1) // 2))
    return min(found, key=lambda reading: reading.error)


def clock(first: Reading, last: Reading) -> Callable[[int], int]:
    """What a time of theirs is on our clock: between two readings clocks drift evenly."""
    ran, offset = last.theirs - first.theirs, first.ours - first.theirs
    drift = (last.ours - first.ours - ran) / ran if ran > 0 else 0.0
    return lambda theirs: theirs + offset + round(drift * (theirs - first.theirs))
