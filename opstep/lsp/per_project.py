"""What is kept for each client: one of a kind, made when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerProject(Generic[T]):
    """``of(project)`` gives the same object for a project each time, from any thread."""

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._values: WeakKeyDictionary[object, T] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, project: object) -> T:
        with self._lock:
            found = self._values.get(project)
            if found is None:
                found = self._values[project] = self._make()
            return found
