"""Checkpoints of ``opstep train``, from which it goes on, and metrics for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import amount, grouped, is_explicit, option, say

if TYPE_CHECKING:
    from opstep.training.journal import Checkpoint
    from opstep.training.loop import Trainer
    from opstep.training.tensorboard import TensorBoard


def _kept(value: Any) -> int | None:
    """``5``, or ``all``: None."""
    return None if value == "all" else click.IntRange(1).convert(value, None, None)


# ``--checkpoint-every``, ``--keep``, ``--resume`` and ``--tensorboard``.
checkpoint_options = grouped(
    option(
        "--checkpoint-every K",
        "With --workspace: steps from one checkpoint to the next.",
        click.IntRange(1),
        default=100,
    ),
    option(
        "--keep N|all",
        "Checkpoints that stay: the last N, the first, and the best by validation.",
        _kept,
        default=5,
    ),
    option(
        "--resume RUN[@STEP]",
        "Go on from a checkpoint of the workspace: last, 3f2a@300, 3f2a@best.",
    ),
    option(
        "--tensorboard DIR", "Write metrics for TensorBoard, to a folder of the run's own in DIR."
    ),
)


def parent_of(options: Mapping[str, Any]) -> Checkpoint | None:
    """The checkpoint that ``--resume`` means. Raises `InputError`."""
    from opstep.runtime.ir.errors import InputError
    from opstep.training.journal import checkpoint

    workspace = options["workspace"]
    if workspace is None:
        for name in ("resume", "checkpoint_every", "keep"):
            if is_explicit(name):
                switch = f"--{name.replace('_', '-')}"
                raise InputError(f"{switch} needs a workspace", hint="add --workspace runs.db")
    if workspace is None or options["resume"] is None:
        return None
    found = checkpoint(workspace, options["resume"])
    if is_explicit("seed") and options["seed"] != found.seed:
        raise InputError(
            f"--seed {options['seed']}: run {found.key} has seed {found.seed}",
            hint="leave --seed out to go on with it",
        )
    return found


def go_on(trainer: Trainer, parent: Checkpoint) -> None:
    """The trainer goes on from the checkpoint; says from where, and what begins anew."""
    from opstep.training.journal import changes, resume

    loaded = resume(trainer, parent)
    at = trainer.position
    say(f"going on from {parent.reference}: epoch {at.epoch + 1}, batch {at.batch + 1}")
    if parent.rows != trainer.batches.size:
        say(f"  batches have {trainer.batches.size} rows; those before had {parent.rows}")
    if at.epoch >= trainer.settings.epochs:
        say(f"  nothing is left of --epochs {trainer.settings.epochs:,}: more go on")
    for line in changes(trainer.program, parent, loaded):
        say(f"  {line}")


def board(options: Mapping[str, Any], key: str | None) -> TensorBoard:
    """What writes for ``--tensorboard``. `key`: of the run, if it is recorded, too."""
    from opstep.training.tensorboard import TensorBoard

    folder = "-".join(part for part in (options["name"], key) if part)
    folder = folder or datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return TensorBoard(Path(options["tensorboard"]) / folder, say)


def show_missed(trainer: Trainer) -> bool:
    """Whether checkpoints or metrics could not be written, and how many."""
    from opstep.training.journal import Journal
    from opstep.training.tensorboard import TensorBoard

    missed = sum(o.missed for o in trainer.observers if isinstance(o, Journal))
    if missed:
        say(f"{amount(missed, 'checkpoint')} could not be written")
    return missed > 0 or any(o.problem for o in trainer.observers if isinstance(o, TensorBoard))
