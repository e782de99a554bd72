"""Delays streams at random, so that orders come up that a machine at rest never shows.

A delay never breaks an order that a plan keeps: whatever changes with it was not ordered. Each
stream draws from a generator of its own, so a seed gives a stream the same delays whatever the
others do.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import count
from random import Random

from opstep.runtime.device.protocols import Device, Own, Stream

SHARE = 0.5  # of the pieces of work that are delayed
MEAN_S = 0.0003
LONGEST_S = 0.003


def chaotic(device: Device, seed: int) -> Device:
    """The device with streams that wait before they begin with a piece of work. Launches are handed
    over one by one, so that each op can be late; memory and machine code are shared.
    """
    chaotic_device = copy(device)
    chaotic_device.captures = False
    numbers = count()
    chaotic_device.stream = lambda: _late(
        device.stream(), Random(f"{seed} {next(numbers)}"), device.delay
    )
    return chaotic_device


def _late(stream: Stream, random: Random, delay: Callable[[float], Own]) -> Stream:
    submit = stream.submit

    def submit_late(work: Own, /) -> None:
        if random.random() < SHARE:
            submit(delay(min(random.expovariate(1 / MEAN_S), LONGEST_S)))
        submit(work)

    stream.submit = submit_late
    return stream
