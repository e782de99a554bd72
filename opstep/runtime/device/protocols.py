"""The interfaces of a device and of a recorder, as the runtime uses them.

A device is a folder beside this file, with a class that derives from `Device`, and an entry in
`opstep.api.devices.KINDS`. It makes its own memory, streams, events, launches and work, and gets
back only objects that it made itself; to the runtime they are opaque (`Own`).

    prepare ── launches ──> bind ── bound ──> capture ── work ──> Stream.submit
    once an op and types    addresses         one piece           in order

A plan is bound once (`binding`) and then run many times (`interpreter`): what runs each time are
`submit`, `record` and `wait` of streams, `reset` of events. Everything else is asked for while a
plan is made or bound, between steps, or by a debugger. A device is used by several threads at once,
a stream or event by one at a time, but for `done`, `set` and callbacks.

What has a body here need not be written again. `null` is the shortest device there is, `cpu` the
plainest that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.plan import Fuse, Plan, Step, Takes
from opstep.runtime.recording import HostRecord, Outputs, RunInfo, StreamRecord, Taken

if TYPE_CHECKING:
    import numpy as np

    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.tape import Tape

Own = Any
"""Something that the same device made: its memory, event, launches, bound launches or work."""

Bytes = Any
"""An int: a checker does not know that the `nbytes` of a concrete type is one."""

Types = tuple[TensorType | None, ...]
"""Concrete types: of the operands as they are stored (None: absent), then of the results."""


class Memory(Protocol):
    """Bytes on a device, freed when nothing refers to them. `address` is a multiple of 64, but for
    memory of others (`external`), where it is one of `Device.alignment`.
    """

    address: int
    nbytes: int


class Event(Protocol):
    """A point in a stream. A binding has one for each event of its plan, and uses it in each run:
    `reset`, then `Stream.record`, then `Stream.wait` on other streams.
    """

    __slots__ = ()

    def reset(self) -> None:
        """Before each run: it is not reached yet, and will be recorded anew."""
        ...

    def set(self) -> None:
        """Lets everybody pass who waits for it: what would have reached it was dropped."""
        ...

    def done(self) -> bool:
        """Whether it is reached, without waiting."""
        ...

    def wait(self) -> None:
        """Blocks the calling thread until it is reached."""
        ...

    def on_done(self, callback: Callable[[], Any]) -> None:
        """Calls back once it is reached, from any thread; at once where it is reached already."""
        ...


class Stream(Protocol):
    """Work in order. What went wrong in work is raised by `synchronize`, as a `DeviceError` where
    the device is at fault.
    """

    def submit(self, work: Own, /) -> None:
        """Queues work, and returns. In the hot loop."""
        ...

    def record(self, event: Own, /) -> None:
        """The event is reached when all that was queued so far is done. In the hot loop."""
        ...

    def wait(self, event: Own, /) -> None:
        """Later work of the stream begins when the event is reached. In the hot loop."""
        ...

    def start(self) -> None:
        """Before the host waits for another stream, which may wait for this one: what is queued
        begins, where it had not.
        """
        ...

    def synchronize(self) -> None:
        """Blocks the host until all that was queued is done. Raises what went wrong."""
        ...

    def done(self) -> bool | None:
        """Whether all that was queued is done; None where that cannot be told without waiting. An
        event loop asks this some times before it has itself called back. Raises what went wrong.
        """
        return None

    def drop(self) -> None:
        """A step is given up: work that has not begun is dropped, where it can be taken back."""
        ...

    def abandon(self) -> None:
        """Behind `drop`: returns when nothing is under way, and forgets what went wrong."""
        ...


@runtime_checkable
class Replayed(Protocol):
    """Code of `Device.stretch` that the device captures."""

    @property
    def ready(self) -> bool:
        """Whether `launch` is all of it now, on whatever stream."""
        ...

    def launch(self, stream: Any) -> None:
        """Issues it there."""
        ...


class Device(Protocol):
    """One device. A program makes it once (`api.devices.device_named`); contexts share it."""

    name: str  # as it is written everywhere: "cpu", "cuda:1"
    title: str = ""  # for people, "GPU 0 (NVIDIA H100)"; "" where the name says it
    arch: str = ""  # of a GPU, "sm_90"
    kernels: str = "cpu"  # which of an op's kernels it runs: `Op.cpu` or `Op.cuda`

    in_host_memory: bool = False
    """`read` costs nothing: it gives a view. Else it copies, and named tensors that were read
    between two steps have to be read again after the next."""

    captures: bool = True
    """Launches that follow one another on a stream are handed to `capture` together."""

    stretches: bool = False
    """All that is issued between two calls of graphs goes through `stretch`. It counts as one piece
    of work, which nobody takes back once it is issued: a step's updates may be part of it."""

    gathers: bool = False
    """A launch costs more than to read a small tensor: one looks at many where that can wait."""

    replays: bool = False
    """What ran before runs again in a fraction of the time if all its addresses are the same."""

    alignment: int = 64
    """Bytes, a power of two: what its kernels assume of an address, beyond that of an element."""

    pace: int = 1
    """How many times faster than `plan.cost` estimates it is: what takes less time is less worth a
    stream of its own."""

    takes: Takes | None = None
    """Whether a kernel does all of a step that is several in one: see `plan.epilogues` and
    `plan.viewing`. The planner asks, from any thread, before it has anything prepared."""

    patience: float | None = None
    """Seconds after which `wait_for_op` gives up, where a kernel can hang; None: never."""

    def fills(self, launches: list[Any]) -> bool:
        """Whether an op's launches, as prepared, leave nothing of the device to another stream."""
        return False

    def enter(self) -> None:
        """The calling thread, which may have used another device, is about to use this one."""

    # --- memory ---

    def alloc(self, nbytes: Bytes, what: str = "") -> Memory:
        """Memory with any content. `what` says for whom, in messages. Raises `DeviceError`."""
        ...

    def want(self, nbytes: Bytes, what: Callable[[], str]) -> None:
        """So many bytes are about to be allocated, piece by piece. Raises `DeviceError` where it is
        known that there are fewer.
        """

    def read(self, memory: Own, offset: int, t: TensorType) -> np.ndarray:
        """The tensor at `offset` bytes: an array of its shape and ``t.dtype.numpy``, a view or a
        copy. All work that writes there is done.
        """
        ...

    def write(self, memory: Own, offset: int, t: TensorType, array: Any) -> None:
        """Copies an array of that shape, or a number for each element, to `offset` bytes. No work
        that uses these bytes is under way.
        """
        ...

    def seek_payload(self, memory: Own, offset: int, t: TensorType, words: np.ndarray) -> Own:
        """Work that sets the first of these two `words` to 1 as it begins, and the second if an
        element has the bits that `fill` writes. ``fill=nan sync=op`` asks for each op.
        """
        ...

    def words(self, count: int) -> np.ndarray:
        """i64[count], zeros, in memory of the host that kernels write: flags, and what is found."""
        ...

    def fill(self, memory: Own, offset: int, nbytes: Bytes, dtype: DType) -> Own:
        """Work that writes `payload.payload(dtype)`, what stands in memory never written."""
        ...

    def copy(self, source: int, target: int, nbytes: Bytes) -> Own:
        """Work that copies bytes between two addresses of this device, which do not overlap."""
        ...

    def copy_from(self, other: Device, source: Own, target: Own) -> bool:
        """Copies all of `source`, memory of another device, to `target` without the host, and
        returns True when it is done; False where it cannot. No work is under way on either.
        """
        return False

    # --- launches ---

    def prepare(self, step: Step, types: Types) -> tuple[Own, int]:
        """The step's launches, compiled at the latest when they are bound, and the bytes of working
        memory that they share. The planner asks; the same op, types and attributes give the same.
        An empty list: there is nothing to run. Raises `ir.op.Mismatch` where a size fits no kernel,
        `DeviceError`.
        """
        ...

    def compile_ahead(self, launches: Iterable[Any]) -> None:
        """They are likely to be bound soon: what is not compiled may be, in the background."""

    def uncompiled(self, launches: Iterable[Any]) -> int:
        """The number of kernels to compile before they can be bound, if that is known."""
        return 0

    def bind(self, launches: Own, addresses: list[int], workspace: int) -> list[Own]:
        """These launches with addresses, of operands (0: absent), then results, and of the working
        memory. A list, so that launches can be put together.
        """
        ...

    def pointers(self, bound: list[Own], slot: int) -> Iterable[Callable[[int], Any]]:
        """Functions to call with another address of an operand or result, by its index in
        `addresses` of `bind`. It holds from the next time the work is issued; none is being issued
        meanwhile.
        """
        ...

    def moved(self, code: Sequence[Callable[[], Any]], places: int) -> None:
        """Addresses in this code, of `stretch`, were changed by `pointers`: to those that this
        number stands for, 0 for the first.
        """

    def capture(self, bound: list[Own]) -> Own:
        """Bound launches, in their order, as one piece of work for any stream. They are not
        captured again: one may do what the next is for.
        """
        ...

    def run_now(self, bound: list[Own]) -> None:
        """Bound launches at once: done when this returns. Checks and debuggers run ops again so."""
        ...

    def work_now(self, work: list[Own]) -> None:
        """Pieces of work at once, in their order: done when this returns. No stream is busy with
        the same memory.
        """
        ...

    def stretch(
        self, code: list[Callable[[], Any]], streams: Sequence[Own], alone: bool, tape: Any,
        spread: bool,
    ) -> list[Callable[[], Any]]:  # fmt: skip
        """Code that a binding calls between two calls of graphs; returns the code to call instead.
        `alone`: nothing else of the run comes before or behind it. `tape`: None or the binding's.
        `spread`: some launches are marked as to run `beside` those before them.
        """
        return code

    def delay(self, seconds: float) -> Own:
        """Work that keeps a stream busy for about so long, and does nothing: see `chaos`."""
        ...

    # --- order ---

    def stream(self) -> Stream:
        """A stream of its own for a context."""
        ...

    def foreign_stream(self, handle: int) -> Stream:
        """A stream of another library, by the handle that the driver knows it by. A device that has
        such streams takes addresses along when work is submitted: `pointers` may change them while
        that is under way.
        """
        raise DeviceError(f"streams of other libraries mean nothing to {self.name}")

    def event(self) -> Event:
        """An event that was not recorded yet."""
        ...

    def wait_for_op(self, stream: Own, progress: Callable[[], int] = int) -> None:
        """Waits after an op under ``sync=op``, until the stream is idle. Raises what went wrong,
        and `DeviceError` after `patience`, which begins anew where `progress` has changed.
        """
        stream.synchronize()

    # --- recording ---

    def tape(self, binding: Binding, recorder: Recorder) -> Tape | None:
        """The tape that records a binding, made before it is bound; None: nothing is recorded."""
        ...

    def meanwhile(self, recorder: Recorder) -> None:
        """All of a recorded run's plan was issued: time to hand over what is known of earlier
        steps, on a device that learns it late.
        """

    def recorded_step(self, recorder: Recorder, now: bool = False) -> None:
        """A recorded step ended, and its streams are idle. `now`: its records are handed over
        before this returns.
        """

    def unrecord(self, recorder: Recorder) -> None:
        """The run ended, or lies idle: all its records are handed over."""


class Recorder(Protocol):
    """Records one run. `add_record` is called from the threads of streams, the rest from the run's.

    Records come before the `end_step` of their step, unless `may_defer` lets them come after it.
    """

    def values_to_record(self, plan: Plan) -> Sequence[tuple[int, int]]:
        """(step, value) of the tensors whose statistics are recorded, when the plan is bound."""
        ...

    def details(self, t: TensorType) -> Sequence[tuple[Step, Types]]:
        """Figures of a tensor of that type beyond statistics, asked when the plan is bound: steps
        of no plan, each with the types of its operands (the tensor, `statistics.ENABLED`) and of
        its i64 result, whose words go to `StreamRecord.details`.
        """
        return ()

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """The steps that follow have other inputs than those of the call."""

    def begin_step(self) -> tuple[int, Taken]:
        """The number of the step that begins, and what is recorded of it."""
        ...

    def next_number(self) -> int:
        """A number for an activation, different from all others of the recording."""
        ...

    def add_record(self, record: StreamRecord | HostRecord) -> None:
        """Takes the record of a stream or the host in an activation."""
        ...

    def may_defer(self, flush: Callable[[], None]) -> bool:
        """Before each `end_step` that would have to wait for its records: True lets them come
        later. `flush()` hands them over at once.
        """
        return False

    def caught_up(self, step: int) -> None:
        """The records of all steps up to this one were taken."""

    def end_step(self, outputs: Outputs, failed: bool = False) -> None:
        """`outputs` may be looked at until this returns. `failed`: one of its asserts did; all ops
        ran, and `end_run` follows.
        """
        ...

    def undone(self) -> None:
        """Named tensors have the values again that they had before the last step."""

    def end_run(self, error: BaseException | None, unwritten: Sequence[Any]) -> None:
        """The call ended, with this error. `unwritten`: see `runtime.written.Unwritten`."""
        ...


class Recording(Protocol):
    """A place where runs are recorded, with a recorder for each. `fuses`: the ops that may run as
    one on a GPU, as in runs that are not recorded; those that do share a row.
    """

    fuses: Fuse

    def begin_run(self, info: RunInfo) -> Recorder: ...
