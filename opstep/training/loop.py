"""The loop: a step of training for each batch, and observers that are told of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.api.inputs import conform
from opstep.api.program import Program
from opstep.api.settings import RunSettings
from opstep.optim.checks import whole
from opstep.runtime.interrupts import AT_ONCE, ONCE, Held
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.errors import InputError, NotFinite, SettingError
from opstep.runtime.ir.graph import Return
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.ir.wording import Argument, Wording
from opstep.training.data import Batches, Dataset, Position, Rows, ahead, is_worth_it
from opstep.training.indices import check_indices
from opstep.training.validation import Validation

Metrics = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long is trained, and what is done on the way. `best_by`: the figure of validations that
    the best step is known by; of the loss the least, of others the greatest. `finite`: training
    ends where the loss is a NaN or an infinity.
    """

    epochs: int = 1
    batch: int = 32
    seed: int = 0
    device: str = "cpu"
    threads: int | None = None
    kernels: str = "auto"
    drop_last: bool = False
    validate_every: int = 1  # epochs
    best_by: str = "loss"
    finite: bool = True
    checkpoint_every: int = 100  # steps; 0: only the first, the best and the last
    keep: int | None = 5  # of the last checkpoints; None: all

    def __post_init__(self) -> None:
        least = {"epochs": 0, "batch": 1, "seed": 0, "validate_every": 1, "checkpoint_every": 0}
        for name, low in least.items():
            whole(name, getattr(self, name), low)
        if self.seed >= 1 << 63:
            raise SettingError("seed", self.seed, "a whole number of at most 63 bits")
        if self.keep is not None:
            whole("keep", self.keep, 1)

    @property
    def run(self) -> RunSettings:
        """How graphs are run."""
        return RunSettings(device=self.device, threads=self.threads, kernels=self.kernels)

    def validates(self, epochs: int) -> bool:
        """Whether there is a validation after so many epochs."""
        return epochs > 0 and (epochs % self.validate_every == 0 or epochs == self.epochs)


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `metrics`: of the last step; `validation`: the last, `best`: the best one,
    each with its step as ``step``. `error`: what it failed or was stopped with.
    """

    kind: Literal["finished", "interrupted", "failed"]
    steps: int
    seconds: float
    metrics: Metrics = field(default_factory=dict)
    validation: Metrics = field(default_factory=dict)
    best: Metrics = field(default_factory=dict)
    error: BaseException | None = None


class Observer(Protocol):
    """What looks at a run. Methods are called between steps: params and states are those after
    `trainer.step` steps, and `trainer.position` is that of the next batch. What one raises ends the
    run as failed.
    """

    def began(self, trainer: Trainer) -> Any:
        """Before the first step."""

    def stepped(self, trainer: Trainer, metrics: Metrics) -> Any:
        """After each step. `metrics`: ``loss``, and the step's other scalar results by name."""

    def validated(self, trainer: Trainer, metrics: Metrics) -> Any:
        """After each validation; `trainer.is_best` says whether it is the best so far."""

    def ended(self, trainer: Trainer, outcome: Outcome) -> Any:
        """At the end, whatever it is; not after a second Ctrl-C."""


class _Prepared(NamedTuple):
    """What runs batches of one size, the names of what it gives, and memory for that, which each
    step writes again.
    """

    executable: Executable
    names: Sequence[str]
    results: Sequence[ExternalTensor | None]


class Trainer:
    """Runs the graph `graph`, a step of training, on each batch. Steps count from `step`, batches
    from `position`: a run that goes on with another one sets both before `run`.

    `batch` has the inputs of the latest step, and `results` what it gave, by name. `execute` makes
    a step; an observer may put another way of running it there, which calls `count` when the step
    has taken effect.
    """

    def __init__(
        self, program: Program, graph: str, batches: Batches, settings: Settings,
        observers: Sequence[Observer] = (), validation: Validation | None = None,
    ):  # fmt: skip
        self.program = program
        self.original = program  # `Watch` has a program with more results take its place
        self.graph = graph
        self.batches = batches
        self.settings = settings
        self.observers = list(observers)
        self.validation = validation
        self.step = 0
        self.position = Position()
        self.batch: Rows = {}
        self.results: Mapping[str, np.ndarray] = {}
        self.metrics: Metrics = {}
        self.validated: Metrics = {}
        self.best: Metrics = {}
        self.is_best = False
        self.owes_validation = False  # the run that this one goes on with had none after its step
        self.outcome: Outcome | None = None  # at the end
        self.recording: Any = None  # of the ops of each step
        self.execute: Callable[[Rows], Mapping[str, np.ndarray]] = self._execute
        self._run = settings.run
        self._device = program.on(self._run.device, self._run.setup)
        self._ahead = is_worth_it(batches, self._device.in_host_memory)
        self._next = self.position
        self._stopped: KeyboardInterrupt | None = None
        self.ask_others: Callable[[bool], bool] | None = None  # whether any of the ranks is to stop
        self._executables: dict[Any, _Prepared] = {}
        self._tensors: Sequence[ExternalTensor] | None = (
            None  # the batch, where it was placed ahead
        )
        self._inputs = [b.name.text for b in program.graph(graph).inputs]

    @property
    def steps(self) -> int | None:
        """Of the whole run, those before it began included; None where nobody knows."""
        per_epoch = self.batches.per_epoch
        return None if per_epoch is None else per_epoch * self.settings.epochs

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do, as of a run that goes on behind its last epoch."""
        owes = self.owes_validation and self.validation is not None
        return self.position.epoch >= self.settings.epochs and not owes

    def run(self) -> Outcome:
        """Trains up to the last epoch. The first Ctrl-C ends it after the step under way, and all
        observers are told; a second one raises at once. Raises what a step or an observer does.
        """
        began = perf_counter()
        self._check_observers()
        self._stopped = None
        with Held(ONCE) as signals:
            try:
                for observer in self.observers:
                    observer.began(self)
                if self.owes_validation:
                    self._validate()
                while self.position.epoch < self.settings.epochs and self._stopped is None:
                    self._epoch(signals)
                if self._stopped is not None:  # by another rank, and meanwhile by one's own Ctrl-C
                    self._let_go(signals)
            except Exception as error:
                self._end("failed", began, error)
                raise
            stopped = self._stopped
            return self._end("interrupted" if stopped else "finished", began, stopped)

    def _check_observers(self) -> None:
        methods = [name for name in vars(Observer) if name[0] != "_"]
        for observer in self.observers:
            if missing := [m for m in methods if not callable(getattr(observer, m, None))]:
                raise InputError(
                    f"observer {type(observer).__name__} has no {names_listed(missing)}",
                    hint="a class that is an opstep.training.loop.Observer has them all",
                )

    def _epoch(self, signals: Held) -> None:
        """What is left of the present epoch, and its validation."""
        rest = map(self._placed_ahead, self.batches.rest(self.position))
        epoch = self.position.epoch
        for following, batch, tensors in ahead(rest) if self._ahead else rest:
            self._next, self.batch, self._tensors = following, batch, tensors
            self.results = self.execute(batch)
            self.metrics = metrics_of(self.results)
            for observer in self.observers:
                observer.stepped(self, self.metrics)
            if self.settings.finite and not math.isfinite(self.metrics["loss"]):
                self._complain()
            self._let_go(signals)
            if self._is_stopped():
                return
        if self.settings.validates(epoch + 1):
            self._validate()
            self._let_go(signals)
            self._is_stopped()

    def _is_stopped(self) -> bool:
        """Whether a Ctrl-C came; ranks end behind the same step, whichever it came to."""
        came = self._stopped is not None
        if self.ask_others is not None and self.ask_others(came) and not came:
            self._stopped = KeyboardInterrupt("another rank was interrupted")
        return self._stopped is not None

    def _execute(self, batch: Rows) -> Mapping[str, np.ndarray]:
        tensors = self._tensors if batch is self.batch else None
        if tensors is None:
            tensors = self._placed(self._arrays(batch))
        prepared = self._executables[tuple([t.type for t in tensors])]
        outputs = prepared.executable(tensors, prepared.results, recording=self.recording)
        self.count()
        return dict(zip(prepared.names, [np.array(o) for o in outputs], strict=True))

    def _arrays(self, batch: Rows) -> Sequence[np.ndarray]:
        """The inputs in order, for which there is what runs them."""
        arrays = self._known(batch)
        if arrays is None:
            if missing := [name for name in self._inputs if name not in batch]:
                has, step = names_listed(batch) or "nothing", self.step + 1
                raise InputError(
                    f"the batch of step {step:,} has no {names_listed(missing)}: {has}"
                )
            graph = self.program.graph(self.graph)
            arrays, types = conform(graph, batch, self.program.module.source)
            if types not in self._executables:
                executable = Executable(self.program, self.graph, types, self._run)
                (returned,) = (s for s in graph.body if isinstance(s, Return))
                names = [v.text for v in returned.values]
                results = [
                    executable.allocate(k) if alias is None or alias.kind == "own" else None
                    for k, alias in enumerate(executable.aliases)
                ]
                self._executables[types] = _Prepared(executable, names, results)
        return arrays

    def _known(self, batch: Rows) -> Sequence[np.ndarray] | None:
        """The arrays of a batch like those before, at which nobody has to look."""
        arrays: Sequence[Any] = [batch.get(name) for name in self._inputs]
        held = [a for a in arrays if isinstance(a, np.ndarray)]
        try:
            types = tuple([TensorType(dtype_of(a.dtype), a.shape) for a in held])
        except KeyError:  # no tensor has such elements
            return None
        whole = len(batch) == len(arrays) == len(types)
        return arrays if whole and types in self._executables else None

    def _placed(self, arrays: Sequence[np.ndarray]) -> list[ExternalTensor]:
        """Where the device reads them."""
        tensors = [ExternalTensor.of(a) for a in arrays]
        if self._device.in_host_memory:
            return tensors
        placed = []
        for tensor, array in zip(tensors, arrays, strict=True):
            memory = self._device.alloc(tensor.nbytes, "batches")
            self._device.write(memory, 0, tensor.type, array)
            placed.append(ExternalTensor(memory.address, tensor.type, self._run.device, memory))
        return placed

    def _placed_ahead(self, item: tuple[Position, Rows]):
        """A batch with its tensors on the GPU; a thread calls it while a step is under way. None
        for tensors of the first batch of a kind, which is looked at when its step comes.
        """
        arrays = None if self._device.in_host_memory else self._known(item[1])
        return *item, None if arrays is None else self._placed(arrays)

    def count(self) -> None:
        """A step has taken effect."""
        self.step += 1
        self.position = self._next

    def _validate(self) -> None:
        if self.validation is None:
            return
        metrics = self.validation.run(self.program, self._run)
        by = self.settings.best_by
        value, best = metrics[by], self.best.get(by)
        better = best is None or (value < best if by == "loss" else value > best)
        self.is_best = math.isfinite(value) and better
        self.validated = {**metrics, "step": self.step}
        if self.is_best:
            self.best = self.validated
        for observer in self.observers:
            observer.validated(self, metrics)

    def _complain(self) -> None:
        loss = self.metrics["loss"]
        what = "NaN" if loss != loss else "infinite"
        epoch = self.position.epoch + (self.position.batch > 0)
        rows = {name: array for name, array in self.batch.items() if np.ndim(array)}
        told = ""
        try:
            dataset = Dataset(
                rows, "the batch", {n: a for n, a in self.batch.items() if n not in rows}
            )
            check_indices(self.program, self.graph, dataset, len(dataset))
        except InputError as error:
            told = f": {error.diagnostics[0].message}"
        raise NotFinite(
            f"the loss is {what} at step {self.step:,} (epoch {epoch}){told}",
            hint=Wording(Argument("hunt", True), " finds where it came from"),
        )

    def _let_go(self, signals: Held) -> None:
        """Between two steps a Ctrl-C that came may take effect."""
        try:
            signals.let_go()
            signals.when = ONCE
        except KeyboardInterrupt as error:
            self._stopped, signals.when = error, AT_ONCE

    def _end(self, kind: Any, began: float, error: BaseException | None) -> Outcome:
        outcome = Outcome(
            kind, self.step, perf_counter() - began, self.metrics, self.validated, self.best, error
        )
        self.outcome = outcome
        for observer in self.observers:
            observer.ended(self, outcome)
        return outcome


def metrics_of(results: Mapping[str, np.ndarray]) -> dict[str, float]:
    """A step's scalar results; the first is the loss."""
    loss, *others = results.items()
    return {"loss": float(loss[1])} | {name: float(a) for name, a in others if a.ndim == 0}
