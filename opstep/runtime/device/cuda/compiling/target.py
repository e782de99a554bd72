"""The architecture that launches are made for: ops ask where it decides which kernel can run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_number: ContextVar[int] = ContextVar("architecture", default=80)


def architecture() -> int:
    """10 times the compute capability, as 90 for sm_90."""
    return _number.get()


@contextmanager
def targeting(arch: str) -> Iterator[None]:
    """Within it launches are made for an architecture such as "sm_90"."""
    token = _number.set(int(arch.removeprefix("sm_").rstrip("a")))
    try:
        yield
    finally:
        _number.reset(token)
