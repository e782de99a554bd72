"""A run of training in a workspace: its row, a step and its metrics for each batch."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.runtime.recording import RunInfo
from opstep.trace.recording import workspace_guard
from opstep.trace.sink import Run, RunEnd, SinkReport, StepDone
from opstep.trace.workspace.store import FileProblem
from opstep.trace.writer import Guard, Writer

if TYPE_CHECKING:
    from opstep.training.loop import Metrics, Outcome, Trainer

STEP_BYTES = 500  # of a step in the queue
METRIC_BYTES = 100  # of one more metric
PATIENCE_S = 600.0  # a large checkpoint of this run or of another may be under way
SILENT_S = 2.0  # of waiting for the file to open, before it is said what for
LAG_S = 10.0  # of what is to be written behind the run, before it is said
SLICE_S = 0.25  # SQLite waits so long at once: no Ctrl-C arrives before
Tags = Mapping[str, str | int | float]


class RunRecord:
    """An observer that writes behind the run, on a thread of its own. A file that has no room left
    does not stop training: `report` tells of it.

    `put` queues a call of the sink (`WorkspaceSink`) behind what is queued already, for observers
    that keep more of the run; `key` is the run's name there. `figures` are metrics of the step
    under way that are not among those of the trainer.
    """

    def __init__(self, path: str | Path, name: str | None = None, tags: Tags | None = None):
        self.path = Path(path)
        self.report: SinkReport | None = None
        self.key = secrets.token_hex(4)
        self.figures: Metrics = {}
        self._name, self._tags = name, dict(tags or {})
        self._said = False
        self._guard = self._opened()
        self._writer: Writer | None = None
        self._run: Run | None = None
        self._since_ns = 0
        self._ended = threading.Event()
        self.journal_waits_since = 0.0  # for the file; inf while it writes a checkpoint

    def _opened(self) -> Guard:
        """The file, as soon as no other process has it locked."""
        began = time.monotonic()
        while True:
            try:
                return workspace_guard(self.path, PATIENCE_S, SLICE_S)
            except FileProblem as problem:
                waited = time.monotonic() - began
                if problem.kind != "locked" or waited > PATIENCE_S:
                    raise
                if waited > SILENT_S:
                    self._tell("Ctrl-C gives up")

    def _look_after(self, writer: Writer) -> None:
        """On a thread of its own: whoever runs steps may wait for the file, too."""
        while not self._said and not self._ended.wait(LAG_S / 10):
            since = self.journal_waits_since
            if (time.monotonic() - since if since else writer.lag()) > LAG_S:
                self._tell("Ctrl-C twice gives up, without what is not written yet")

    def _tell(self, way_out: str) -> None:
        if not self._said:
            self._said = True
            say(f"waiting to write to {self.path}: another process locks it, or its disk is slow")
            say(f"  for {PATIENCE_S:.0f} s at most; {way_out}")

    def began(self, trainer: Trainer) -> None:
        self._writer = Writer(self._guard.call, lambda: self._guard.call([("flush",)]))
        looking = threading.Thread(target=self._look_after, args=(self._writer,), daemon=True)
        looking.start()
        self._since_ns = time.monotonic_ns()
        self._run = self._described(trainer)
        self.put("begin_run")

    def _described(self, trainer: Trainer) -> Run:
        program, settings = trainer.original, trainer.settings.run
        shards = program.params.shards  # these are in checkpoints, put together
        device = program.on(settings.device, settings.setup)
        given = {n: program.params[n] for n in program.params.known() if n not in shards}
        info = RunInfo(
            program, trainer.graph, {}, settings.policy, settings.device, settings.threads,
            program.seed, trainer.steps or 1, device.title,
        )  # fmt: skip
        return Run(
            self.key, info, time.time(), self._since_ns, "none", 1, {"workspace": self.path},
            {n: a for n, a in given.items() if not program.params.drawable(n)},
            self._name, self._tags,
        )  # fmt: skip

    def put(self, method: str, *arguments: Any, nbytes: int = 0) -> None:
        """Queues a call of a method of the sink: its first argument is the run."""
        assert self._writer is not None
        self._writer.put([(method, self._run, *arguments)], nbytes)

    def barrier(self) -> None:
        """Returns when all that was queued is in the file."""
        assert self._writer is not None
        self._writer.barrier()

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        began, self._since_ns = self._since_ns, time.monotonic_ns()
        if trainer.position.batch == 0:
            metrics = {**metrics, "epoch": trainer.position.epoch}
        metrics = {**metrics, **self.figures}
        done = StepDone(trainer.step - 1, began, self._since_ns, metrics, repeatable=False)
        self.put("end_step", done, nbytes=STEP_BYTES + METRIC_BYTES * len(self.figures))

    def validated(self, trainer: Trainer, metrics: Metrics) -> None:
        named = {f"validation.{name}": value for name, value in metrics.items()}
        self.put("add_metrics", trainer.step - 1, named, nbytes=STEP_BYTES)
        self._since_ns = time.monotonic_ns()

    def ended(self, trainer: Trainer, outcome: Outcome) -> None:
        if self._writer is None or self._run is None:  # it could not even begin
            return
        params = trainer.program.params
        updated = {n: params[n] for n in params.updated() if n not in params.shards}
        end = RunEnd(time.monotonic_ns(), trainer.step, outcome.error, [], trainer.results, updated)
        self.put("end_run", end)
        self._writer.close()
        self._ended.set()
        self.report = self._guard.close()


def say(text: str) -> None:
    with suppress(OSError, ValueError):  # a stream that is closed
        print(text, file=sys.stderr, flush=True)
