"""Python's cycle collector, paused while much is built that lives on.

A syntax tree of 100,000 statements has a million objects and no cycles. Collecting while it is
built walks them again and again and takes twice as long as the parser itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_LARGE = 100_000  # objects, from which on to look at them takes time
_MOST = 8  # times that they are passed over between two collections of all

_passed_over = [0, 0]  # how often, since so many collections of all


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within it, cycles are left to be collected later; reference counts work as always.

    If much was made, it is then as old as can be: it is looked at when all is, not at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _LARGE and not gc.get_freeze_count():
                _grow_old()
            gc.enable()


def _grow_old() -> None:
    """Moves all objects to the oldest generation. The collector then counts from 0, so if that is
    done again and again, it would never look at all.
    """
    collections = gc.get_stats()[-1]["collections"]
    if collections != _passed_over[1]:
        _passed_over[:] = 0, collections
    if _passed_over[0] < _MOST:
        _passed_over[0] += 1
        gc.freeze()
        gc.unfreeze()
