"""Checkpoints of training: all that a run goes on from, written whole or not at all.

A checkpoint is a row of `checkpoints` and its tensors, params and states. What they have in common
with others in the file, such as frozen params, is stored once. `made` is the number of steps before
it; the tables say `step`, the last of them.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Wording
from opstep.trace.workspace import names
from opstep.trace.workspace.blobs import now, put_tensor, read_array
from opstep.trace.workspace.reading import readable

FORMAT = 1  # of what is written here; a newer one is not read
EVERY = Argument("checkpoint_every", 100)
_COLUMNS = (
    "checkpoints.id, run, runs.key, checkpoints.step + 1, epoch, batch, rows, checkpoints.seed, "
    "metric, score, saved, format"
)
_TABLES = "checkpoints join runs on runs.id = run where checkpoints.kind = 'train'"


class TrainingCheckpoint(NamedTuple):
    """A checkpoint without its tensors."""

    id: int
    run: int
    key: str  # of the run
    made: int  # steps
    epoch: int  # of the next batch
    batch: int
    rows: int  # of a batch
    seed: int
    metric: str | None  # the figure of validations that the best is known by
    score: float | None  # its value, where it was the best so far
    saved: str
    format: int

    @property
    def reference(self) -> str:
        """``3f2a9c01@300``"""
        return f"{self.key}@{self.made}"


# --- writing --------------------------------------------------------------------------------------


def put_checkpoint(
    connection: sqlite3.Connection, run: int, made: int, position: tuple[int, int, int], seed: int,
    tensors: Iterable[tuple[str, str, np.ndarray]],
) -> None:  # fmt: skip
    """Within a transaction. `position`: epoch, batch, and rows of a batch; `tensors`: kind, name,
    elements.
    """
    row = (run, made - 1, "train", now(), FORMAT, *position, seed)
    cursor = connection.execute(
        "insert into checkpoints (run, step, kind, saved, format, epoch, batch, rows, seed) "
        f"values ({', '.join('?' * len(row))})",
        row,
    )
    for kind, name, array in tensors:
        put_tensor(connection, name, array, kind, run, made - 1, cursor.lastrowid)


def put_score(
    connection: sqlite3.Connection, run: int, made: int, metric: str, score: float
) -> None:
    """A checkpoint is the best by validation so far."""
    connection.execute(
        "update checkpoints set metric = ?, score = ? "
        "where run = ? and step = ? and kind = 'train'",
        (metric, score, run, made - 1),
    )


def put_parent(connection: sqlite3.Connection, run: int, parent: int, made: int) -> None:
    """The run goes on from a checkpoint of another."""
    row = (parent, made, run)
    connection.execute("update runs set parent = ?, parent_step = ? where id = ?", row)


def drop_checkpoints(connection: sqlite3.Connection, run: int, keep: int) -> int:
    """Within a transaction: removes those of a run that need not stay; how many."""
    dropped = superfluous(read_checkpoints(connection, run), keep)
    for checkpoint in dropped:
        connection.execute("delete from checkpoints where id = ?", (checkpoint.id,))
        digests = connection.execute(
            "delete from tensors where run = ? and checkpoint = ? returning digest",
            (run, checkpoint.id),
        ).fetchall()
        connection.executemany(
            "delete from blobs where digest = ? "
            "and not exists (select 1 from tensors where tensors.digest = blobs.digest)",
            digests,
        )
    return len(dropped)


def superfluous(found: list[TrainingCheckpoint], keep: int) -> list[TrainingCheckpoint]:
    """Those of a run but for the first, the best and the last `keep`."""
    best = best_of(found)
    return [c for c in found[1 : max(1, len(found) - keep)] if c != best]


# --- reading --------------------------------------------------------------------------------------


@readable
def read_checkpoints(
    connection: sqlite3.Connection, run: int | None = None
) -> list[TrainingCheckpoint]:
    """Those of a run, or of all runs, in the order of their steps."""
    rows = connection.execute(
        f"select {_COLUMNS} from {_TABLES} and (:run is null or run = :run) "
        "order by run, checkpoints.step, checkpoints.id",
        {"run": run},
    )
    return [TrainingCheckpoint._make(row) for row in rows]


def best_of(checkpoints: Iterable[TrainingCheckpoint]) -> TrainingCheckpoint | None:
    """The best by validation of one run: the last that was the best so far."""
    scored = [c for c in checkpoints if c.score is not None]
    return max(scored, key=lambda c: c.made, default=None)


def best_before(
    connection: sqlite3.Connection, run: int, made: int = sys.maxsize
) -> TrainingCheckpoint | None:
    """The best of a run after at most so many steps, or of what it went on from."""
    found = best_of(c for c in read_checkpoints(connection, run) if c.made <= made)
    if found is None:
        query = "select parent, parent_step from runs where id = ? and parent is not null"
        for parent, step in connection.execute(query, (run,)).fetchall():
            return best_before(connection, parent, min(step, made))
    return found


def find_checkpoint(connection: sqlite3.Connection, reference: str) -> TrainingCheckpoint:
    """The one that ``RUN`` or ``RUN@STEP`` means: the last of the run, or that before this step, or
    the ``first``, ``best`` or ``last``. Run ``last`` is the last that has checkpoints. Raises
    `InputError` where there is none, or its format is newer.
    """
    run, at, step = str(reference).strip().rpartition("@")
    run, step = (run, step) if at else (step, "last")
    if not run or not re.fullmatch(r"[0-9]{1,18}|first|best|last", step):
        raise InputError(
            f"{reference!r} is no checkpoint",
            hint="write RUN, RUN@STEP, RUN@best or RUN@first, such as last@300",
        )
    id = None
    if run == "last":  # that has checkpoints: a run that was killed early may have none
        last = "select max(run) from checkpoints where kind = 'train'"
        (id,) = connection.execute(last).fetchone()
    id = names.find_run(connection, run) if id is None else id
    found = read_checkpoints(connection, id)
    chosen = best_before(connection, id) if step == "best" else None
    if step in ("first", "last"):
        chosen = found[0 if step == "first" else -1] if found else None
    elif step != "best":
        chosen = next((c for c in found if c.made == int(step)), None)
    if chosen is None:
        raise _absent(connection, run, step, found)
    if chosen.format > FORMAT:
        raise InputError(
            f"checkpoint {chosen.reference} was written by a newer opstep (format {chosen.format}; "
            f"this one knows {FORMAT}): update opstep"
        )
    return chosen


def _absent(
    connection: sqlite3.Connection, run: str, step: str, found: list[TrainingCheckpoint]
) -> InputError:
    if not found:
        others = dict.fromkeys(c.key for c in read_checkpoints(connection))
        hint = f"runs {', '.join(list(others)[-8:])} have some" if others else ""
        return InputError(
            f"run {run} has no checkpoint", hint=hint or Wording(EVERY, " makes some")
        )
    listed = ", ".join(str(c.made) for c in found[-8:])
    which = "validated checkpoint" if step == "best" else f"checkpoint at step {step}"
    return InputError(f"run {run} has no {which}", hint=f"it has some at {listed}")


@readable
def checkpoint_values(
    connection: sqlite3.Connection, checkpoint: TrainingCheckpoint
) -> Mapping[str, np.ndarray]:
    """Its params and states by name. Raises `InputError` where they are damaged."""
    found = names.tensors(connection, run=checkpoint.run, step=checkpoint.made - 1)
    return {t.name: read_array(connection, t) for t in found if t.checkpoint == checkpoint.id}
