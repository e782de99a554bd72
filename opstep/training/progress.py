"""What is seen of a run: a line that changes on a terminal, lines of text anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from opstep.runtime.device.cache import Compiler
from opstep.runtime.ir.calls import amount
from opstep.training.loop import Metrics, Outcome, Trainer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

TICK_S = 0.1  # between two changes of the line
LINES = 20  # of text for a run of more epochs
SMOOTHING = 0.98  # of the loss that the line shows


class Progress:
    """An observer: epoch, step, loss, other figures of the step, throughput and the time left.
    On a terminal, one line that changes; else a line for each epoch, or for some 20 of them.
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self._bar: Bar | None = None
        self._task: Any = None
        self._shown = 0.0
        self._began, self._first = 0.0, 0
        self._smooth = 0.0
        self._rows = 0
        self._sum, self._count, self._since = 0.0, 0, 0.0  # since the last line
        self._before = 0
        self._lost = False  # nobody reads the stream any more
        self._expected = -1  # kernels that were told of
        self._watchers: tuple[Any, Any] | None = None  # of the compiler, before this one

    def began(self, trainer: Trainer) -> None:
        self._began = self._since = perf_counter()
        self._first = trainer.step
        if self.stream.isatty():
            self._bar = _bar(self.stream)
            self._task = self._bar.add_task("", total=trainer.steps, completed=trainer.step)
            self._bar.start()
            self._watch_compiler()
        elif Compiler.on_compile is None:  # else somebody shows that already
            self._watch_compiler()

    def _watch_compiler(self) -> None:
        """Until the first step is done, and later where new sizes need kernels."""
        self._watchers = Compiler.on_compile, Compiler.on_tune
        Compiler.on_compile, Compiler.on_tune = self._compiling, self._tuning

    def _compiling(self, kernel: str) -> None:
        if self._bar is not None:
            self._describe(f"compiling kernel {Compiler.count()}: {kernel} (once: they are kept)")
            return
        expected = Compiler.expected - Compiler.compiled  # of those that come first nobody knows
        if self._expected < 0 or (expected > 0 and self._expected < Compiler.expected):
            number = amount(expected, "kernel") if expected > 0 else "kernels"
            self._line(f"compiling {number} (once: they are kept)")
            self._expected = Compiler.expected

    def _tuning(self, op: str) -> None:
        self._describe(f"trying kernels for {op} (once: the fastest is kept)")

    def _describe(self, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, refresh=True)

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        loss = metrics["loss"]
        self._sum += loss
        self._count += 1
        self._rows += max((len(a) for a in trainer.batch.values() if a.ndim), default=1)
        if self._bar is not None:
            kept = SMOOTHING if trainer.step > self._first + 1 else 0.0
            self._smooth += (1 - kept) * (loss - self._smooth)
            if perf_counter() - self._shown > TICK_S:
                self._show(trainer, metrics)
        if trainer.position.batch == 0:
            self._end_epoch(trainer)

    def _show(self, trainer: Trainer, metrics: Metrics) -> None:
        """The line as it is now."""
        self._shown = perf_counter()
        rate = self._rows / (self._shown - self._began)
        epoch = min(trainer.position.epoch + 1, trainer.settings.epochs)
        # A narrow terminal cuts off the end: what was asked for stands before it.
        text = f"epoch {epoch}/{trainer.settings.epochs}  loss {self._smooth:.4g}"
        measured = {k: v for k, v in trainer.validated.items() if k not in ("step", "loss")}
        if "loss" in trainer.validated:
            measured["loss"] = trainer.validated["loss"]
        if measured:
            text += f"  validation: {words(measured)}"
        others = {k: v for k, v in metrics.items() if k != "loss"}
        text += f"  step {trainer.step:,}  {words(others)}  {rate:,.0f} rows/s"
        assert self._bar is not None
        self._bar.update(self._task, completed=trainer.step, description=text, refresh=True)

    def _end_epoch(self, trainer: Trainer) -> None:
        now = perf_counter()
        epoch, epochs = trainer.position.epoch, trainer.settings.epochs
        if self._bar is None and (epoch == epochs or epoch % -(-epochs // LINES) == 0):
            rate = (self._rows - self._before) / max(now - self._since, 1e-9)
            self._line(
                f"epoch {epoch}/{epochs}  step {trainer.step:,}  "
                f"{words({'loss': self._sum / self._count})}  {rate:,.0f} rows/s"
            )
            self._sum, self._count, self._since, self._before = 0.0, 0, now, self._rows

    def validated(self, trainer: Trainer, metrics: Metrics) -> None:
        epoch, epochs = trainer.position.epoch, trainer.settings.epochs
        if self._bar is None and (epoch == epochs or epoch % -(-epochs // LINES) == 0):
            best = "  (best)" if trainer.is_best else ""
            self._line(f"    validation: {words(metrics)}{best}")

    def ended(self, trainer: Trainer, outcome: Outcome) -> None:
        if self._bar is not None and outcome.metrics:
            self._show(trainer, outcome.metrics)
        self.stop()

    def stop(self) -> None:
        """Gives the terminal back, also where nobody was told of the end."""
        if self._bar is not None:
            self._bar.stop()
        if self._watchers is not None:
            Compiler.on_compile, Compiler.on_tune = self._watchers
            self._watchers = None

    def _line(self, text: str) -> None:
        """Training goes on where this cannot be written: ``2>&1 | head``, a full disk."""
        if not self._lost:
            try:
                print(text, file=self.stream, flush=True)
            except OSError:
                self._lost = True


def words(figures: Mapping[str, float]) -> str:
    """``loss 0.0312  accuracy 0.984``"""
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


def _bar(stream: TextIO) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    return Progress(
        BarColumn(bar_width=16, table_column=Column(min_width=16)),
        TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        console=Console(file=stream, highlight=False, markup=False),
        auto_refresh=False,
        expand=True,
    )
