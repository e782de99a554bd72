"""Attributes of libraries that are others for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """While the block lasts, an attribute of a class or a module is what `make` gives for what it
    was. What others have put in its place since then stays.
    """
    before, own = getattr(owner, name), vars(owner).get(name)
    made = make(before)
    setattr(owner, name, made)
    try:
        yield
    finally:
        if vars(owner).get(name) is made:
            delattr(owner, name) if own is None else setattr(owner, name, own)
