"""``opstep.train``: from a program with a loss to one that has been trained on data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from opstep.api.devices import check_computes
from opstep.api.program import Program
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.wording import Argument, Wording
from opstep.training.best import Best
from opstep.training.data import Part
from opstep.training.journal import Journal, best_values, changes, checkpoint
from opstep.training.journal import resume as go_on
from opstep.training.loop import Observer, Settings, Trainer
from opstep.training.preparing import data_of, loss_of, sized, sizes_of, with_step
from opstep.training.recorded import RunRecord
from opstep.training.validation import Validation
from opstep.training.watching import stop_when_wrong


def train(
    program: Program, data: Any, *, graph: str | None = None, optimizer: Any = "adamw",
    epochs: int = 1, batch: int = 32, seed: int = 0, validate: Any = None,
    metrics: Sequence[str] = (), validate_every: int = 1, device: str = "cpu",
    drop_last: bool = False, round: bool = False, step_graph: str | None = None,
    best: str | None = None, workspace: str | Path | None = None,
    checkpoint_every: int = Settings.checkpoint_every, keep: int | None = Settings.keep,
    resume: str | None = None, hunt: bool = False, watch: str | Sequence[str] = (),
    observers: Iterable[Observer] = (), **options: Any,
) -> Trainer:  # fmt: skip
    """Trains the params of `program` by the loss that `graph` gives, and sets them in it. Returns
    the trainer: `trainer.outcome` says how the run went, `trainer.program` has the step and what
    the optimizer keeps. docs/training.md describes data, validation and observers.

    `data`: a file or folder, arrays by names of inputs, several of these in a list, or an iterable
    of batches. `validate`: the same, or a share of the data. `metrics`: graphs whose first results
    are figures of validations, beside the loss. `best`: the figure by which the best validation is
    known, whose params are given back in place of the last ones; of the loss it is the least, of
    others the greatest. `workspace`: where metrics and checkpoints go, one for each so many steps,
    of which the last `keep` stay (None: all). `resume`: the checkpoint that it goes on from, such
    as ``last@300``, with the seed of its run. `options`: of `Program.with_optimizer`; `memory` is
    for batches of the size that is trained with. A program that has a graph of a step is trained by
    it: `step_graph`, or ``<graph>_step``. `hunt` ends the run at the first NaN or infinity
    (`Diverged`), `watch` when a condition such as ``"absmax(d_*) > 1e3"`` holds (`Tripped`). Raises
    `OpstepError`. A Ctrl-C ends training after the step under way; then what was learned is set,
    and it is raised.
    """
    _check_types(program, {**locals(), **options})
    parent = None
    if resume is not None:
        if workspace is None:
            raise InputError(f"resume={resume!r} needs a workspace", hint="give workspace=, too")
        parent = checkpoint(workspace, resume)
    settings = Settings(
        epochs=epochs, batch=batch, seed=seed if parent is None else parent.seed, device=device,
        drop_last=drop_last, validate_every=validate_every, checkpoint_every=checkpoint_every,
        keep=keep,
    )  # fmt: skip
    trainer = prepare(
        program, data, settings, graph=graph, optimizer=optimizer, options=options,
        validate=validate, metrics=metrics, best=best, step_graph=step_graph, rounded=round,
    )  # fmt: skip
    if parent is not None:
        for line in changes(trainer.program, parent, go_on(trainer, parent)):
            warnings.warn(line, stacklevel=2)
    if workspace is not None and not (parent and trainer.is_done):
        record = RunRecord(workspace)
        trainer.observers += [record, Journal(record, parent, warnings.warn)]
    if best:
        trainer.observers.append(Best(best_values(workspace, parent, best)))
    trainer.observers += observers
    stop_when_wrong(trainer, hunt, watch)
    outcome = trainer.run()
    hand_over(trainer, program, warnings.warn)
    if outcome.error is not None:
        raise outcome.error
    return trainer


def _check_types(program: Any, given: Mapping[str, Any]) -> None:
    """Complains of arguments that are plainly something else than what is wanted."""
    if not isinstance(program, Program):
        told = repr(program) if isinstance(program, (str, Path)) else type(program).__name__
        hint = 'opstep.load("file.opg") gives one'
        raise InputError(f"program is {told}; it is to be an opstep.Program", hint=hint)
    for name in ("graph", "step_graph", "best"):
        if not isinstance(given[name], (str, NoneType)):
            raise SettingError(name, given[name], "a name")
    if not isinstance(given["device"], str):
        raise SettingError("device", given["device"], "a name, such as 'cpu'")
    if not isinstance(given["workspace"], (str, os.PathLike, NoneType)):
        raise SettingError("workspace", given["workspace"], "the path of a file")
    for name, what in (("metrics", "graphs"), ("wrt", "params"), ("freeze", "params")):
        value = given.get(name)
        if isinstance(value, str) or not _is_text(() if value is None else value):
            raise SettingError(name, value, f"a list of names of {what}")
    if not _is_text(given["watch"]):
        raise SettingError("watch", given["watch"], "conditions, such as 'absmax(d_*) > 1e3'")
    if not isinstance(given["observers"], Iterable):
        raise SettingError("observers", given["observers"], "a list of observers")


def _is_text(given: Any) -> bool:
    """Whether something is a string, or several; what can be iterated over once is left alone."""
    if not isinstance(given, Collection):
        return isinstance(given, Iterable)
    return all(isinstance(one, str) for one in given)


def hand_over(trainer: Trainer, program: Program, warn: Callable[[str], Any]) -> None:
    """Gives a program the values of tensors that the trainer's has, too: the last ones, or the best
    where those are kept; `warn` is told where none was the best.
    """
    for observer in trainer.observers:
        if isinstance(observer, Best) and not observer.restore(trainer) and trainer.validated:
            by = trainer.settings.best_by
            warn(f"{by} was a NaN or an infinity in each validation: none is the best, and the "
                 "last params stay")  # fmt: skip
    learned = trainer.program.params
    for name in program.params:
        if name in learned.known() and not learned.drawable(name):
            program.params[name] = learned[name]


def prepare(
    program: Program, data: Any, settings: Settings, *, graph: str | None = None,
    optimizer: Any = "adamw", options: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (), validate: Any = None, metrics: Sequence[str] = (),
    best: str | None = None, step_graph: str | None = None, rounded: bool = False,
    part: Part = Part(),
) -> Trainer:  # fmt: skip
    """A trainer of `program` by the loss `graph`, not yet run. All that can be wrong with the data
    is complained of here. Arguments: see `train`; `options`: of `Program.with_optimizer`; `part`:
    what this rank has of each batch.
    """
    check_computes(settings.device, "trained on")
    program.reseed_with(settings.seed)
    loss, step = loss_of(program, graph, step_graph)
    measured = {"loss": loss, **{name: program.graph(name).name.text for name in metrics}}
    settings = sized(
        replace(settings, best_by=best or settings.best_by), program.graph(loss), part.count
    )
    arguments = dict(options or {})
    batches, held = data_of(
        program, data, settings, list(measured.values()), validate, rounded, part
    )
    if step is None:
        if part.count > 1:
            arguments.setdefault("data_parallel", True)
        steps = None if batches.per_epoch is None else batches.per_epoch * settings.epochs
        if arguments.get("memory") is not None and not arguments.get("symbols"):
            arguments["symbols"] = sizes_of(program.graph(loss), batches)
        made, step = with_step(program, loss, optimizer, arguments, steps)
    elif arguments:
        raise InputError(
            f"{next(iter(arguments))} is for a step that is written here; graph {step} is one "
            "already",
            hint="change it in the graph",
        )
    else:
        made = program
        if not effects_of([step], program.verified).updates:
            raise InputError(
                f"graph {step} is no step of training: it updates nothing",
                span=program.graph(step).name.span, source=program.module.source,
                hint="give it another name, and a step is written for the loss",
            )  # fmt: skip
    validation = None
    if held is not None:
        validation = Validation(measured, held)
        validation.check(made, settings.best_by)
    elif metrics or best:
        raise InputError(
            "metrics, and the best of them, are of validations, and there is none",
            hint=Wording("add ", Argument("validate", 0.1)),
        )
    if arguments.get("loss_scale") is not None:  # which the step lowers where a gradient is not
        settings = replace(settings, finite=False)
    return Trainer(made, step, batches, settings, observers, validation)
