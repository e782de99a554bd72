"""A trace in the engine, for verbs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opstep.cli.common import console
from opstep.cli.trace import say_left_out

if TYPE_CHECKING:
    from opstep.trace.viewer.engine import Engine


@contextmanager
def opened(file: str, timeout: float) -> Iterator[Engine]:
    """Loads a trace; says so where it was cut, and on a terminal while it takes its time."""
    from rich.status import Status

    from opstep.trace.viewer.engine import Engine

    with Status(f"loading {file}", console=console(stderr=True)):
        engine = Engine(file, timeout)
    with engine:
        say_left_out(file, engine.readable)
        yield engine
