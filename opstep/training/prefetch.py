"""Batches that are made ready while a step is under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from typing import Any, TypeVar

import numpy as np

from opstep.training.data import Batches

T = TypeVar("T")
DEPTH = 2  # batches that wait
WORTH = 1 << 18  # bytes of a batch, from which on making it takes longer than handing it over
_TICK_S = 0.5  # between two looks at whether the other side is still there


def is_worth_it(batches: Batches, on_cpu: bool) -> bool:
    """Whether making a batch takes longer than another thread costs. While a GPU works the host has
    nothing else to do; on the CPU the kernels have all cores, and a thread takes them away.
    """
    columns = batches.dataset.columns.values()
    rows = (int(np.prod(c.shape[1:], dtype=int)) * c.dtype.itemsize for c in columns)
    return not on_cpu and sum(rows) * batches.size >= WORTH


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, made by a thread of their own, `DEPTH` ahead. What the iterator raises is
    raised here, in its place.
    """
    queue: Queue[tuple[str, Any]] = Queue(DEPTH)
    left = threading.Event()  # nobody takes any more

    def put(kind: str, value: Any) -> bool:
        while not left.is_set():
            try:
                queue.put((kind, value), timeout=_TICK_S)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, daemon=True, name="opstep batches")
    thread.start()
    try:
        while True:
            try:
                kind, value = queue.get(timeout=_TICK_S)
            except Empty:
                if thread.is_alive() or not queue.empty():
                    continue
                return
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        left.set()
