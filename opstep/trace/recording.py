"""A recording: runs, and the files that hold what is known of them.

    with opstep.Recording(workspace="runs.db", trace="run.pftrace") as recording:
        program.run("main", inputs, recording=recording)

Records come from the threads of streams and are queued; a writer's thread hands them to the sinks.
A step is in the files at the latest `LAG_S` after it ended.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.runtime.device.protocols import Recorder, Types
from opstep.runtime.interrupts import EndedBySigterm
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.plan.plan import Fuse, Plan, Step
from opstep.runtime.recording import (
    HostRecord,
    Outputs,
    Overhead,
    RunInfo,
    StreamRecord,
    Taken,
    spender,
    spending,
)
from opstep.trace.free import FreeRecord
from opstep.trace.given import Given
from opstep.trace.selection import Details, Selection, first_reads
from opstep.trace.sink import FailedSink, Initial, Run, RunEnd, SinkReport, StepDone
from opstep.trace.writer import MAKE_ROOM, NO_ROOM, Call, Guard, Writer

if TYPE_CHECKING:
    import numpy as np

LAG_S = 0.1
RECORD_BYTES = 1000  # of a record, beside its arrays' elements
TOGETHER = 1 << 16  # bytes of a step's records, from which on they do not wait for its end

WORTH_NS = 200_000  # of the writer's work, from which on it is shown


class Recording:
    """Records runs in a workspace (SQLite), a timeline (Perfetto), or both.

    `stats`: whose statistics are taken, see `Selection`; without a workspace, none. `stats_every`:
    of every so many steps, beginning with the first; without a timeline nothing is recorded of the
    ops of other steps. `trace_steps`: those that the timeline is to show, ``range(100, 110)``; all.
    Raises `InputError` where a file cannot be used. `stats_also`: what is taken beyond statistics,
    see `Details`: quantiles, signed, channels.
    A file that has no room, or cannot be written any more, does not stop a run: `close` reports
    it.

    `name` and `tags` stand in the workspace beside each run (tables `runs` and `settings`), to find
    it by. `keep_inputs`: of each so many steps inputs, params and states are kept, so that
    `Workspace.rerun` can begin there: of a loop that gives each step inputs of its own, too.

    While a recording is open, SIGTERM raises `SystemExit` in the main thread, unless the program
    has a handler of its own: the run ends as after Ctrl-C, and the files are whole.
    """

    def __init__(
        self,
        *,
        workspace: str | Path | None = None,
        trace: str | Path | None = None,
        stats: str = "all",
        stats_every: int = 1,
        stats_also: str = "",
        trace_steps: range | None = None,
        name: str | None = None,
        tags: Mapping[str, str | int | float] | None = None,
        keep_inputs: int = 0,
    ):
        if workspace is None and trace is None:
            raise InputError("a recording needs a workspace, a trace, or both")
        if stats_every < 1:
            raise InputError(f"stats_every is {stats_every}; at least 1 is needed")
        if keep_inputs < 0:
            raise InputError(f"keep_inputs is {keep_inputs}; it can be 0, for none, or more")
        self.labels = {"name": name, "tags": dict(tags or {}), "keep_inputs": keep_inputs}
        self.selection = Selection(stats if workspace is not None else "none")
        self.every = stats_every
        self.details = Details(stats_also)
        self.fuses = Fuse.ALL
        if workspace is not None:  # its questions are about single ops
            self.fuses = Fuse.NOTHING if stats_also else Fuse.ELEMENTWISE
        self.files = {
            what: Path(path)
            for what, path in (("workspace", workspace), ("trace", trace))
            if path is not None
        }
        if len({path.resolve() for path in self.files.values()}) < len(self.files):
            raise InputError(f"{workspace} cannot be both the workspace and the trace")
        self._guards = _open(self.files, trace_steps)
        self._writer = Writer(self._call, self._flush)
        self._latest: Run | None = None  # that the sinks know of
        self._writing: list[Overhead] = []  # what writing took
        self.numbers = count()  # of activations
        self._recorders: list[_Recorder] = []
        self._lock = threading.Lock()
        self._reports: list[SinkReport] | None = None
        self._process = os.getpid()
        self._sigterm = EndedBySigterm(SystemExit(143)).__enter__()
        atexit.register(self._close_at_exit)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin_run(self, info: RunInfo) -> _Recorder:
        """A recorder for one call of `Program.run`.

        Calls that differ only in their inputs go on with the same run, unless another of them is
        under way.
        """
        if self._reports is not None:
            raise InputError("the recording is closed")
        if self._process != os.getpid():
            raise InputError(
                "this recording belongs to the process that opened it",
                hint="open one of its own after the fork; several may write to one workspace",
            )
        if not -(1 << 63) <= info.seed < 1 << 63:
            raise InputError(f"a run with seed {info.seed} cannot be recorded: it has over 64 bits")
        with self._lock:
            going_on = [r for r in self._recorders if r.idle and _same(r.run.info, info)]
            recorder = going_on[-1] if going_on else self._new(info)
            recorder.begin_call(info)
        return recorder

    def close(self) -> list[SinkReport]:
        """Ends all runs and the files; reports what was written, in the order workspace, trace."""
        if self._process != os.getpid():  # a fork has neither the writer nor the files
            return []
        if self._reports is None:
            atexit.unregister(self._close_at_exit)
            for recorder in self._recorders:
                under_way = None if recorder.idle else KeyboardInterrupt("the recording was closed")
                recorder.finish(under_way)
                recorder.run.info.program.forget_contexts()  # those kept for this recording
            self._writer.close()
            self._reports = [guard.close() for guard in self._guards]
            self._sigterm.__exit__()
        return self._reports

    def _close_at_exit(self) -> None:
        """For a recording that nobody closed: problems become warnings."""
        for report in self.close():
            if report.problem:
                warnings.warn(f"{report.path} is incomplete: {report.problem}", stacklevel=1)

    @property
    def runs(self) -> list[Run]:
        """The runs so far."""
        return [recorder.run for recorder in self._recorders]

    def _new(self, info: RunInfo) -> _Recorder:
        params = info.program.params
        initial = {n: params[n] for n in params.known() if not params.drawable(n)}
        info = info._replace(inputs={n: a.copy() for n, a in info.inputs.items()})
        now, now_ns = time.time(), time.monotonic_ns()
        run = Run(
            secrets.token_hex(4),
            info,
            now,
            now_ns,
            self.selection.text,
            self.every,
            self.files,
            initial,
            details=self.details,
            **self.labels,
        )
        self.put([("begin_run", run)])
        self._recorders.append(_Recorder(self, run))
        return self._recorders[-1]

    def put(self, calls: Sequence[Call], nbytes: int = 0) -> bool:
        """Queues calls of each sink; whether that had to wait for the files."""
        return self._writer.put(calls, nbytes)

    def barrier(self) -> None:
        """Returns when all that was queued is in the files."""
        self._writer.barrier()

    def catch_up(self) -> bool:
        """Waits where what was queued more than `LAG_S` ago is not in the files; whether it did."""
        lagging = self._writer.lag() > LAG_S
        if lagging:
            self.barrier()
        return lagging

    def _call(self, calls: Sequence[Call]) -> None:
        """On the writer's thread."""
        for guard in self._guards:
            began = time.monotonic_ns()
            guard.call(calls)
            ended = time.monotonic_ns()
            if ended - began > WORTH_NS:
                name = f"write {guard.sink.path.name}"
                self._writing.append(Overhead(name, "write", began, ended, "recorder"))
        if calls and len(calls[-1]) > 1:  # a flush is of no run
            self._latest = calls[-1][1]
        if self._writing and self._latest is not None:
            overheads = [("add_overhead", self._latest, spent) for spent in self._writing]
            self._writing.clear()
            for guard in self._guards:
                guard.call(overheads)

    def _flush(self) -> None:
        self._call([("flush",)])


def _same(a: RunInfo, b: RunInfo) -> bool:
    """Whether two calls differ only in their inputs and in how many steps they ask for."""
    return a.program is b.program and a._replace(inputs={}, steps=0) == b._replace(
        inputs={}, steps=0
    )


class _Recorder(Recorder):
    """Takes down one run, call by call (`device.protocols.Recorder`)."""

    def __init__(self, recording: Recording, run: Run):
        self.run = run
        self.idle = True  # no call is under way, and none has failed
        self._recording = recording
        self._values: dict[int, list[tuple[int, int]]] = {}  # by id of a plan
        self._plans: list[Plan] = []
        self._steps = 0  # finished
        self._left = 0  # steps of this call that are still to come
        self._began_ns = 0  # of the step under way
        self._since_ns = (0, 0)  # the step before it: when it ended, and was taken down
        self._spender: Any = None
        self._outputs: Mapping[str, np.ndarray] = {}
        self._unwritten: list[Any] = []
        self._calls: list[Call] = []  # of the step under way, still to be queued
        self._nbytes = 0  # that they hold
        self._ended = False
        self._ending = threading.Lock()  # nothing is queued after the end
        self._given = Given(run)
        self._undone = False  # named tensors are as they were before the last step
        self._flushed_ns = 0  # when late records were asked for
        self._flush_device: Callable[[], None] | None = (
            None  # hands over records that are still to come
        )
        self._ends: deque[StepDone] = deque()  # of steps whose records are

    def begin_call(self, info: RunInfo) -> None:
        self.idle = self._undone = False
        self._left = info.steps
        self._given.begin_call(info, self._steps)
        if not self._steps:
            self._since_ns = (self.run.began_ns, self.run.began_ns)
        self._spender = spender.set(self._add_overhead)

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._given.set_inputs(inputs)

    def values_to_record(self, plan: Plan) -> Sequence[tuple[int, int]]:
        if id(plan) not in self._values:
            self._plans.append(plan)
            if not self._began_ns:
                with spending("statistics", "of inputs and named tensors"):
                    self._note_initial(plan)
            values = [*self._found(plan), *self._recording.selection.values(plan)]
            self._values[id(plan)] = sorted(values, key=lambda value: value[0])
        return self._values[id(plan)]

    def _found(self, plan: Plan) -> list[tuple[int, int]]:
        """(step, value) of inputs and named tensors, which others may change between two steps."""
        initial = self.run.initial
        numbers = self.run.numbers_before(plan)
        found = {v for v, n in numbers.items() if initial[-1 - n].statistics is not None}
        return first_reads(plan, found)

    def _note_initial(self, plan: Plan) -> None:
        """Statistics of the plan's inputs and named tensors: no step has begun, so they stand."""
        from opstep.runtime.device.cpu.device import statistics_of

        program, selection = self.run.info.program, self._recording.selection
        noted = {i.name for i in self.run.initial}
        tensors = [("input", name, array) for name, array in self.run.info.inputs.items()]
        names = dict.fromkeys(b.name for b in plan.buffers if b.kind == "param")
        tensors += [(program.module.tensors[n].kind, n, program.params[n]) for n in names]
        for kind, name, array in tensors:
            if name not in noted:
                selected = selection.tensor(kind, name) and "workspace" in self.run.files
                figures = statistics_of(array) if selected else None
                t = TensorType(dtype_of(array.dtype), array.shape)
                details = self.run.details.of(array, t) if selected else None
                self.run.initial.append(Initial(kind, name, t, figures, details))

    def details(self, t: TensorType) -> Sequence[tuple[Step, Types]]:
        return self.run.details.steps(t)

    def next_number(self) -> int:
        return next(self._recording.numbers)

    def begin_step(self) -> tuple[int, Taken]:
        self._began_ns = time.monotonic_ns()
        every = self.run.keep_inputs
        if every and self._steps and self._steps % every == 0:
            self._checkpoint()
        return self._steps, self._taken()

    def _taken(self) -> Taken:
        """Between steps with statistics no op is recorded, so that they are as fast as any; but a
        timeline shows all steps, and so does a run without statistics.
        """
        if self._steps % self.run.every == 0:
            return Taken.STATISTICS
        timed = "trace" in self.run.files or self.run.selection == "none"
        return Taken.TIMES if timed else Taken.NOTHING

    def _checkpoint(self) -> None:
        """All that a repeat needs from the step on that begins now, or has ended."""
        checkpoint = self._given.checkpoint(self._steps)
        self._put("add_checkpoint", checkpoint, nbytes=checkpoint.nbytes)

    def may_defer(self, flush: Callable[[], None]) -> bool:
        self._flush_device = flush
        return True

    def caught_up(self, step: int) -> None:
        self._end_before(step + 1)
        self._catch_up()

    def _end_before(self, step: int) -> None:
        """Ends those steps before this one that have ended."""
        while self._ends and self._ends[0].step < step:
            self._put("end_step", self._ends.popleft())

    def add_record(self, record: StreamRecord | HostRecord) -> None:
        if self._ends:
            self._end_before(record.activation.step)
        nbytes = RECORD_BYTES
        if isinstance(record, StreamRecord):
            nbytes += record.times.nbytes + (0 if record.stats is None else record.stats.nbytes)
            nbytes += 0 if record.details is None else record.details.nbytes
            self._given.note(record, self._steps)
        self._put("add_record", record, nbytes)

    def end_step(self, outputs: Outputs, failed: bool = False) -> None:
        now, metrics = time.monotonic_ns(), outputs.scalars()
        if self._given.missing(self._steps, failed, self._plans):
            self._checkpoint()
        step, repeatable = self._steps, self._given.repeatable
        done = StepDone(step, self._began_ns, now, metrics, failed, repeatable, self._since_ns)
        if self._flush_device is None:
            self._put("end_step", done)
        else:
            self._ends.append(done)
        if failed:
            return
        self._steps += 1
        self._left -= 1
        if self._left == 0:
            self._outputs = {n: a.copy() for n, a in outputs.items()}
        if self._flush_device is None:
            self._catch_up()
        self._since_ns = now, time.monotonic_ns()

    def add_step(self, records: Sequence[FreeRecord], done: StepDone) -> None:
        """One of what runs without a plan."""
        self.add_free(records)
        self._steps = done.step + 1
        self._put("end_step", done)
        self._catch_up()

    def add_free(self, records: Sequence[FreeRecord]) -> None:
        """Of a step that has not ended."""
        for record in records:
            self._put("add_record", record, record.nbytes)

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Of a step that has ended."""
        with self._ending:
            if not self._ended:
                self._hand_over()
                self._recording.put([("add_metrics", self.run, step, metrics)])

    def _catch_up(self) -> None:
        began = time.monotonic_ns()
        if self._recording.catch_up():
            self._add_overhead(Overhead("wait for the files", "disk", began, time.monotonic_ns()))

    def _add_overhead(self, spent: Overhead) -> None:
        self._put("add_overhead", spent)

    def undone(self) -> None:
        self._undone = True

    def end_run(self, error: BaseException | None, unwritten: Sequence[Any]) -> None:
        with suppress(ValueError):  # a run that was dropped may end in another context
            if self._spender is not None:
                spender.reset(self._spender)
        self._spender = None
        self._unwritten += unwritten
        if error is not None:
            self.finish(error)
        else:
            if self._flush_device and time.monotonic_ns() - self._flushed_ns > LAG_S * 1e9:
                self._flush_device()
                self._flushed_ns = time.monotonic_ns()
            self.idle = True

    def _put(self, method: str, argument: Any, nbytes: int = 0) -> None:
        """Queues what belongs to the run, that of a step together; what comes when the recording is
        closed is left out.
        """
        with self._ending:
            if not self._ended:
                self._calls.append((method, self.run, argument))
                self._nbytes += nbytes
                if method == "end_step" or self._nbytes > TOGETHER:
                    self._hand_over()

    def _hand_over(self) -> None:
        calls, nbytes, self._calls, self._nbytes = self._calls, self._nbytes, [], 0
        began = time.monotonic_ns()
        if self._recording.put(calls, nbytes):
            spent = Overhead("wait for the files", "disk", began, time.monotonic_ns())
            self._calls.append(("add_overhead", self.run, spent))

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing more comes: the run's end is written."""
        if self._flush_device:
            with suppress(DeviceError):  # what was lost with the device
                self._flush_device()
        self._end_before(self._steps + 1)
        with self._ending:
            if self._ended:
                return
            self._ended = True
            self._hand_over()
            if self._steps and self._since_ns[1] > self._since_ns[0]:
                spent = Overhead("record", "record", *self._since_ns)
                self._recording.put([("add_overhead", self.run, spent)])
        self.idle = False
        params = self.run.info.program.params
        updated = {n: params[n] for n in params.updated()}
        end = RunEnd(
            time.monotonic_ns(), self._steps, error, self._unwritten, self._outputs, updated,
            self._undone,
        )  # fmt: skip
        self._recording.put([("end_run", self.run, end)])


def _open(files: Mapping[str, Path], trace_steps: range | None) -> list[Guard]:
    """The sinks of the files asked for; where one cannot be opened, none stays open."""
    opened: list[Guard] = []
    try:
        if "workspace" in files:
            opened.append(workspace_guard(files["workspace"]))
        if "trace" in files:
            from opstep.trace.timeline import TimelineSink

            opened.append(Guard(TimelineSink(files["trace"], trace_steps)))
    except BaseException:
        for guard in opened:
            guard.close()
        raise
    return opened


def workspace_guard(path: Path, *patience: float) -> Guard:
    """A workspace to write to; one that has no room already reports that at its end. `patience`: of
    `WorkspaceSink`.
    """
    from opstep.trace.workspace.sink import WorkspaceSink
    from opstep.trace.workspace.store import FileProblem

    try:
        return Guard(WorkspaceSink(path, *patience))
    except FileProblem as problem:
        if problem.kind != "full":
            raise
        return Guard(FailedSink(path), f"{NO_ROOM}; {MAKE_ROOM}")
