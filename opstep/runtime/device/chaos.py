"""Delays streams at random, so that orders come up that a machine at rest never shows.

A delay never breaks an order that a plan keeps: whatever changes with it was not ordered. Each
stream draws from a generator of its own, so a seed gives a stream the same delays whatever the
others do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from functools import partial
from itertools import count
from random import Random
from typing import Any

SHARE = 0.5  # of the pieces of work that are delayed
MEAN_S = 0.0003
LONGEST_S = 0.003


def chaotic(device: Any, seed: int) -> Any:
    """The device with streams that wait before they begin with a piece of work. Launches are handed
    over one by one, so that each op can be late; memory and machine code are shared.
    """
    made = copy(device)
    made.captures = False
    delay = partial(_spinning, device) if device.name.startswith("cuda") else _sleeping
    numbers = count()
    made.stream = lambda: _late(device.stream(), Random(f"{seed} {next(numbers)}"), delay)
    return made


def _late(stream: Any, random: Random, delay: Callable[[float], Any]) -> Any:
    submit = stream.submit

    def submit_late(work: Any) -> None:
        if random.random() < SHARE:
            submit(delay(min(random.expovariate(1 / MEAN_S), LONGEST_S)))
        submit(work)

    stream.submit = submit_late
    return stream


def _sleeping(seconds: float) -> Callable[[], None]:
    return partial(time.sleep, seconds)


def _spinning(device: Any, seconds: float) -> Callable[[int], None]:
    from opstep.runtime.device.cuda.spinning import spin

    return spin(device, seconds)
