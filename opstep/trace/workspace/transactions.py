"""Transactions of a workspace's connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def transaction(connection: sqlite3.Connection, mode: str = "immediate") -> Iterator[None]:
    """All of it, or nothing; waits for other writers first, not in the middle. `mode`: ``deferred``
    where only temporary tables are written, which needs no turn.
    """
    connection.execute(f"begin {mode}")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it
            connection.execute("rollback")
        raise


# --- what is wrong with a file --------------------------------------------------------------------
