"""The journal of a training run: checkpoints in its workspace, from which it can go on.

Between two steps the tensors are copied within the memory of their device; a thread brings them to
the workspace behind the run, each checkpoint whole or not at all. While one is being written and
another one waits, the run waits, too: every `every`th step has its checkpoint, however slow the
disk is.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.snapshot import Snapshot, others_take
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.trace.workspace import checkpoints
from opstep.trace.workspace.blobs import text_digest
from opstep.trace.workspace.names import find_run
from opstep.trace.workspace.sink import text_of
from opstep.trace.workspace.store import open_writing
from opstep.trace.workspace.transactions import transaction
from opstep.trace.workspace.workspace import Workspace
from opstep.trace.writer import Writer, words
from opstep.training.data import Position
from opstep.training.recorded import PATIENCE_S

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program
    from opstep.api.tensors import Loaded
    from opstep.trace.workspace.checkpoints import TrainingCheckpoint
    from opstep.training.loop import Metrics, Outcome, Trainer
    from opstep.training.recorded import RunRecord


@dataclass(frozen=True)
class Checkpoint:
    """All that training goes on from. Random numbers are functions of seeds and of states, so these
    are the random state, too.
    """

    run: int  # id in its workspace
    key: str
    step: int  # how many were made
    position: Position  # of the next batch
    rows: int  # of a batch
    seed: int  # of the data's order, and of initial values
    digest: str  # of its program's text
    best: TrainingCheckpoint | None  # so far, by validation
    validated: bool  # whether there was one after the last step
    values: Mapping[str, np.ndarray]  # params and states by name

    @property
    def reference(self) -> str:
        """``3f2a9c01@300``"""
        return f"{self.key}@{self.step}"


class Moments:
    """When there are checkpoints: before the first step, after every `Settings.checkpoint_every`th
    and the last, and where a validation is the best so far. Ranks that write none take part in
    those of rank 0: they give their shards.
    """

    _latest = -1  # the step of the last checkpoint

    def began(self, trainer: Trainer) -> None:
        self._submit(trainer)

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        every = trainer.settings.checkpoint_every
        if every and trainer.step % every == 0:
            self._submit(trainer)

    def validated(self, trainer: Trainer, metrics: Metrics) -> None:
        if trainer.is_best:
            self._submit(trainer)

    def ended(self, trainer: Trainer, outcome: Outcome) -> None:
        self._submit(trainer)

    def _submit(self, trainer: Trainer) -> None:
        """The state between two steps, once."""
        if trainer.step != self._latest:
            self._latest = trainer.step
            self._take(trainer)

    def _take(self, trainer: Trainer) -> None:
        others_take(trainer.program)


class Journal(Moments):
    """Writes checkpoints of a run, beside what `record` writes of it.
    Of these stay the first, the best, and the last `Settings.keep`; None keeps all.

    `parent`: the checkpoint that the run goes on from. `say` is told once if a checkpoint cannot be
    written; `missed` counts these. The next one is tried all the same.
    """

    def __init__(
        self, record: RunRecord, parent: Checkpoint | None = None,
        say: Callable[[str], Any] = lambda text: None,
    ):  # fmt: skip
        self.missed = 0
        self.problem: str | None = None  # why
        self._record = record
        self._parent = parent
        self._say = say
        self._said = False
        self._spare: list[Snapshot] = []  # whose memory can be used again
        self._writer: Writer | None = None
        self._connection: sqlite3.Connection | None = None

    def began(self, trainer: Trainer) -> None:
        self._record.barrier()  # the run's row is in the file
        self._keep = trainer.settings.keep
        tensors = trainer.program.module.tensors
        self._kinds = {name: declared.kind for name, declared in tensors.items()}
        nbytes: Any = sum(declared.type.nbytes for declared in tensors.values())
        self._writer = Writer(self._write, lambda: None, limit=2 * nbytes)
        if self._parent:
            self._put(checkpoints.put_parent, self._parent.run, self._parent.step)
        super().began(trainer)

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        super().stepped(trainer, metrics)
        self._tell()

    def validated(self, trainer: Trainer, metrics: Metrics) -> None:
        super().validated(trainer, metrics)
        if trainer.is_best:
            by = trainer.settings.best_by
            self._put(checkpoints.put_score, trainer.step, by, metrics[by])

    def ended(self, trainer: Trainer, outcome: Outcome) -> None:
        if self._writer is None:
            return
        try:
            super().ended(trainer, outcome)
        except DeviceError as error:  # the rank that has a part is gone
            self._failed(words(error))
        self._writer.close()
        self._close()
        self._tell()

    def _take(self, trainer: Trainer) -> None:
        snapshot = self._spare.pop() if self._spare else Snapshot(trainer.program)
        nbytes = snapshot.take()
        next_ = trainer.position
        position = (next_.epoch, next_.batch, trainer.batches.size)
        seed = trainer.settings.seed
        self._put(self._insert, trainer.step, position, seed, snapshot, nbytes=nbytes)

    def _put(self, write: Callable[..., Any], *arguments: Any, nbytes: int = 0) -> None:
        """Queues `write`, which the writer's thread calls with a connection and the run's id."""
        assert self._writer is not None
        self._writer.put([(write, arguments)], nbytes)

    def _tell(self) -> None:
        if self.problem and not self._said:
            self._said = True
            path = self._record.path
            self._say(f"a checkpoint could not be written to {path}: {self.problem}")

    # --- on the writer's thread ---

    def _write(self, items: list[tuple]) -> None:
        for write, arguments in items:
            self._record.barrier()  # metrics of the steps before a checkpoint are there, too
            self._record.journal_waits_since = time.monotonic()
            try:
                if self._connection is None:
                    self._connection = open_writing(self._record.path, PATIENCE_S)
                with transaction(self._connection):
                    self._record.journal_waits_since = inf
                    run = find_run(self._connection, self._record.key)
                    write(self._connection, run, *arguments)
            except (OSError, sqlite3.Error) as error:
                self._failed(words(error))
            except InputError as error:  # of the file
                texts = (text for d in error.diagnostics for text in (d.message, d.hint) if text)
                self._failed("; ".join(texts).removeprefix(f"{self._record.path}: "))
            except Exception as error:  # our mistake must not stop the thread: the run would wait
                self._failed(f"internal error: {type(error).__name__}: {error}")
            finally:
                self._record.journal_waits_since = 0.0

    def _failed(self, problem: str) -> None:
        self.missed += 1
        self.problem = self.problem or problem
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _insert(
        self, connection: sqlite3.Connection, run: int, made: int, position: tuple[int, int, int],
        seed: int, snapshot: Snapshot,
    ) -> None:  # fmt: skip
        try:
            tensors = ((self._kinds[name], name, snapshot.read(name)) for name in snapshot)
            checkpoints.put_checkpoint(connection, run, made, position, seed, tensors)
            if self._keep is not None:
                checkpoints.drop_checkpoints(connection, run, self._keep)
        finally:
            self._spare.append(snapshot)


# --- going on -------------------------------------------------------------------------------------


def checkpoint(workspace: str | Path, run: int | str, step: int | str | None = None) -> Checkpoint:
    """One that a run has kept: ``3f2a``, ``last@300``, ``last@best``; the last of a run, unless a
    step is given. Raises `InputError` where there is none, or a newer opstep wrote it.
    """
    reference = str(run) if step is None else f"{run}@{step}"
    with Workspace(workspace) as ws:
        found = ws.checkpoint(reference)
        made = ws.run(found.run)
        figures = {m.name for m in made.metrics if m.step == found.made - 1}
        return Checkpoint(
            found.run, found.key, found.made, Position(found.epoch, found.batch), found.rows,
            found.seed, made.digest, ws.best_before(found.run, found.made),
            any(name.startswith("validation.") for name in figures), ws.checkpoint_values(found),
        )  # fmt: skip


def restore(program: Program, checkpoint: Checkpoint) -> Loaded:
    """Sets the params and states whose names and types agree; tells which do not. Raises
    `InputError` where none does, or no param is in both: programs share their counter of steps.
    """
    program.reseed_with(checkpoint.seed)
    loaded = program.params.load(checkpoint.values, strict=False)
    there = {*checkpoint.values} - {*loaded.unexpected}
    params = any(program.module.tensors[name].kind == "param" for name in there)
    if not params or not there - {*loaded.mismatched}:
        parts = [f"it has no {names_listed(loaded.missing)}"] if loaded.missing else []
        parts += [f"{names_listed(loaded.mismatched)} differ in type"] if loaded.mismatched else []
        parts += [f"here is no {names_listed(loaded.unexpected)}"] if loaded.unexpected else []
        raise InputError(
            f"checkpoint {checkpoint.reference} is of another program: {'; '.join(parts)}"
        )
    return loaded


def resume(trainer: Trainer, checkpoint: Checkpoint) -> Loaded:
    """`restore`, and the trainer goes on behind the steps that were made: at the same row of the
    epoch, or with batches of another size at the last batch before it.
    """
    epoch, batch = checkpoint.position.epoch, checkpoint.position.batch
    batches, settings = trainer.batches, trainer.settings
    if checkpoint.rows != batches.size and batches.size:
        batch = batch * checkpoint.rows // batches.size
    if batches.per_epoch is not None and batch >= batches.per_epoch:
        raise InputError(
            f"checkpoint {checkpoint.reference} goes on with batch {batch + 1} of epoch "
            f"{epoch + 1}; an epoch of {batches.dataset.source} has {batches.per_epoch}",
            hint="its run had other data",
        )
    loaded = restore(trainer.program, checkpoint)
    trainer.step, trainer.position = checkpoint.step, Position(epoch, batch)
    best = checkpoint.best
    if best is not None and best.metric == settings.best_by:
        trainer.best = {settings.best_by: best.score or 0.0, "step": best.made}
    trainer.owes_validation = not batch and not checkpoint.validated and settings.validates(epoch)
    return loaded


def best_values(
    workspace: str | Path | None, parent: Checkpoint | None, metric: str
) -> Mapping[str, np.ndarray]:
    """Params and states of the best validation by this figure of the run that one goes on with."""
    if workspace is None or parent is None or parent.best is None or parent.best.metric != metric:
        return {}
    with Workspace(workspace) as ws:
        return ws.checkpoint_values(parent.best)


def changes(program: Program, checkpoint: Checkpoint, loaded: Loaded) -> list[str]:
    """What does not agree with a checkpoint, in words."""
    lines, tensors = [], program.module.tensors
    if text_digest(text_of(program.module)) != checkpoint.digest:
        lines.append("the text of the program, or of its step, is not that of the run")
    if loaded.missing:
        lines.append(f"begin anew, not in the checkpoint: {names_listed(loaded.missing)}")
    if loaded.mismatched:
        now = names_listed(f"{name} ({tensors[name].type} now)" for name in loaded.mismatched)
        lines.append(f"begin anew, of another type in the checkpoint: {now}")
    if loaded.unexpected:
        lines.append(f"in the checkpoint only: {names_listed(loaded.unexpected)}")
    return lines
