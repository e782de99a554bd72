"""Records a script's ops: a run of a workspace, a timeline, or both."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from opstep.api.program import Program
from opstep.frontends.torch.eager.figures import Figures, can_be_had
from opstep.frontends.torch.eager.ops import (
    Facts,
    as_call,
    by_name,
    facts_of,
    tensors_in,
    without_defaults,
)
from opstep.frontends.torch.eager.scalars import scalar_name
from opstep.frontends.torch.eager.session import Session
from opstep.frontends.torch.eager.sites import Sites, own_frame
from opstep.runtime.ir.graph import Module, Source
from opstep.runtime.plan.plan import Policy
from opstep.runtime.recording import Activation, RunInfo
from opstep.trace.free import FreeRecord
from opstep.trace.recording import Recording
from opstep.trace.sink import StepDone
from opstep.trace.workspace.runs import EAGER

_TOGETHER = 1 << 13  # ops of a step that has not ended, from which on they are handed over
_MOST_NUMBERS = 1 << 12


class _Part:
    """The ops that a thread ran in the step under way."""

    def __init__(self, stream: int):
        self.stream = stream
        self.figures = Figures()
        self.begin()

    def begin(self) -> None:
        self.ran: list[tuple[int, int, int, int]] = []  # op, turn, begin, end
        self.taken: list[tuple[int, int, bool]] = []  # row, result, whether it is of floats


class Records:
    """`noted` is for `Dispatch`; `met`, `gave` and `read` are for `Native`. A step ends when
    an optimizer's does; it is handed over when the next one ends, for the numbers that a script
    reads of it come later.
    """

    def __init__(self, recording: Recording):
        self._recording = recording
        self._recorder: Any = None  # until the first op
        self._lock = threading.RLock()
        self._parts: dict[int, _Part] = {}
        self._turns: dict[int, int] = {}
        self._marks: list[tuple[str, int]] = []
        self._held: tuple[list[FreeRecord], StepDone] | None = None
        self._metrics: dict[int, dict[str, float]] = {}  # by step
        self._made_in: dict[int, int] = {}  # by the address of a number: the step
        self._wanted: dict[tuple[int, int], bool] = {}  # statistics, by op and result
        self._skipped = 0
        self._step, self._began = 0, monotonic_ns()

    def begin(self, session: Session) -> None:
        """When the session has been entered."""
        self._session = session
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def _begin_run(self) -> None:
        """As the script that this process runs, which its first op has set up."""
        script = str(getattr(sys.modules["__main__"], "__file__", None) or "script")
        name = script.rpartition("/")[2]
        labels = self._recording.labels
        labels["name"] = labels["name"] or name
        program = Program(Module((), source=Source("".join(linecache.getlines(script)), script)))
        threads = torch.get_num_threads()
        info = RunInfo(program, name, {}, Policy(), EAGER, threads, 0, 0, "PyTorch")
        self._recorder = self._recording.begin_run(info)
        session = self._session
        self._sites = Sites(name, session.watcher.made_by, session.hooks.optimizers)
        self._set_taken()

    def noted(
        self, mode: Any, op: Any, facts: Facts, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """An op has run. What is asked of its results here dispatches nothing."""
        with self._lock:
            if self._recorder is None:
                self._begin_run()
            if facts.skipped:
                self.read(args[0], result)
                return
            number = 0
            if self._is_recorded:
                number = self._sites.number(mode, op, facts, args, kwargs)
            if number >= 0:  # no mark for profilers
                tensors = (result,) if type(result) is torch.Tensor else tensors_in(result)
                tensors = tensors or [t for k in facts.writes for t in tensors_in(args[k : k + 1])]
                self.gave(id(mode), number, mode.began, mode.ended, tensors)

    def gave(
        self, thread: int, number: int, began: int, ended: int, results: Sequence[torch.Tensor]
    ) -> None:
        """An op has run."""
        with self._lock:
            if not self._has_figures:
                self._take()
            of_one = [t.data_ptr() for t in results if t.numel() == 1 and can_be_had(t)]
            part = self._ran(thread, number, began, ended, *of_one[:1])
            for k, t in enumerate(results if self._is_recorded else ()):
                self._result(part, number, k, t)
            if len(part.ran) >= _TOGETHER:
                self._hand_over()
                self._recorder.add_free(self._records())

    def _ran(self, thread: int, number: int, began: int, ended: int, address: int = 0) -> _Part:
        """`address`: of a result of one element, else 0."""
        if address:
            self._made_in[address] = self._step
        part = self._parts.get(thread)
        if part is None:
            part = self._parts[thread] = _Part(len(self._parts))
        if self._is_recorded:
            turn = self._turns[number] = self._turns.get(number, -1) + 1
            part.ran.append((number, turn, began, ended))
        return part

    def met(
        self, name: str, overload: str, given: list[Any], results: list[Any], modules: list[Any]
    ) -> int:  # fmt: skip
        """The number of an op that has run at a place of its own; -1 for a mark of profilers."""
        with self._lock:
            if self._recorder is None:
                self._begin_run()
            op = by_name(name, overload)
            facts, place = facts_of(op), self._session.watcher.place()
            args, kwargs = as_call(op, without_defaults(op, given))
            number = self._sites.at(op, facts, args, kwargs, modules, place)
            for k, t in enumerate(results if number >= 0 else ()):
                self._is_wanted(number, k, t)
            return number

    def _take(self) -> None:
        """Takes in the ops that the native watcher has noted."""
        if self._session.watcher.form == "native":
            rows = np.frombuffer(self._session.watcher.take_ran(), np.int64)
            for row in rows.reshape(-1, 5).tolist():
                self._ran(*row)

    def _is_wanted(self, number: int, k: int, t: torch.Tensor) -> bool:
        """Whether statistics of a result are asked for; one that is new is noted."""
        found = self._wanted.get((number, k))
        if found is None:
            name, op = self._sites.result(number, k, t), self._sites.known[number]
            found = self._wanted[number, k] = self._recording.selection.tensor(op.name, name)
        return found

    def _result(self, part: _Part, number: int, k: int, t: torch.Tensor) -> None:
        is_wanted = self._is_wanted(number, k, t)
        if self._has_figures and can_be_had(t):
            self._sites.gave[t.data_ptr()] = number, k
            if is_wanted:
                part.figures.add(t)
                part.taken.append((len(part.ran) - 1, k, t.dtype.is_floating_point))

    def read(self, t: torch.Tensor, value: Any) -> None:
        """The script asks for a number."""
        with self._lock:
            if type(value) not in (int, float) or self._recorder is None:
                return
            name = scalar_name(own_frame(), t)
            if not name:
                return
            self._take()
            step = self._made_in.get(t.data_ptr(), self._step) if can_be_had(t) else self._step
            self._metrics.setdefault(step, {})[name] = float(value)

    # --- steps ---

    def _set_taken(self) -> None:
        """Statistics are of each so many steps; of others nothing, unless a timeline shows them."""
        run = self._recorder.run
        is_counted = self._step % run.every == 0
        self._has_figures = is_counted and run.selection != "none"
        self._is_recorded = is_counted or "trace" in run.files or run.selection == "none"
        if self._session.watcher.form == "native":
            self._session.watcher.values(self._has_figures)
        if not self._has_figures:  # who writes meanwhile is not known
            self._sites.gave.clear()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._lock:
            if self._recorder is not None:
                self._marks.append((f"step of {type(optimizer).__name__}", monotonic_ns()))
                self._end_step()

    def _end_step(self) -> None:
        self._take()
        skipped = self._session.hooks.skipped
        if skipped > self._skipped:
            self._skipped = skipped
            self._marks.append(("GradScaler skipped a step", monotonic_ns()))
        self._hand_over()
        ended = monotonic_ns()
        self._held = self._records(), StepDone(self._step, self._began, ended, {}, repeatable=False)
        self._step, self._began = self._step + 1, ended
        self._turns.clear()
        if len(self._made_in) > _MOST_NUMBERS:
            self._made_in.clear()
        self._set_taken()

    def _hand_over(self) -> None:
        """The step before the one under way, and numbers of those before it."""
        if self._held is not None:
            records, done = self._held
            self._held = None
            self._recorder.add_step(
                records, done._replace(metrics=self._metrics.pop(done.step, {}))
            )
        for step in [k for k in self._metrics if k < self._step - 1]:
            self._recorder.add_metrics(step, self._metrics.pop(step))

    def _records(self) -> list[FreeRecord]:
        return [self._record(part) for part in self._parts.values() if part.ran]

    def _record(self, part: _Part) -> FreeRecord:
        ran = np.array(part.ran, np.int64)
        taken = np.array(part.taken, np.int64).reshape(-1, 3).T
        no_layout: Any = None
        activation = Activation(self._recorder.next_number(), self._step, no_layout)
        met, self._sites.met = self._sites.met, []
        marks, self._marks = self._marks, []
        part.begin()
        return FreeRecord(
            activation, part.stream, ran[:, 0], ran[:, 1], ran[:, 2:], taken[0], taken[1],
            taken[2].astype(bool), part.figures.taken(), met, self._sites.known,
            len(self._sites.known), marks,
        )  # fmt: skip

    def end(self, error: BaseException | None) -> None:
        """The script has ended; what ran after the last step is one more."""
        self._hook.remove()
        with self._lock:
            if self._recorder is None:
                return
            self._take()
            if any(part.ran for part in self._parts.values()) or self._metrics.get(self._step):
                self._end_step()
            self._step += 1
            self._hand_over()
            self._recorder.end_run(error, [])
