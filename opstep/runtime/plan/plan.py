"""A plan is data: what to allocate, launch, record, wait for and free, in order of issue.

It is made for concrete shapes, one policy and one kind of device, and knows no memory addresses:
the interpreter binds it. Reading order: `Value` (what the graph computes) lives in a `Buffer`
(bytes); a `Step` is one op; an `Instruction` is one line of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from opstep.runtime.ir.graph import Graph, Source, Statement
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Policy:
    """The four switches. Async mode is N, reuse, none, none; debug mode is 1, fresh, nan, op."""

    streams: int = 1
    alloc: str = "reuse"  # or "fresh": every buffer its own memory, never reused within a run
    fill: str = "none"  # or "nan": memory is filled with the NaN payload before an op writes it
    sync: str = "none"  # or "op": the host waits for each op


ASYNC = Policy(streams=4)
DEBUG = Policy(streams=1, alloc="fresh", fill="nan", sync="op")
MODES = {"async": ASYNC, "debug": DEBUG}


class Fuse(IntEnum):
    """The ops of a plan that may run as one step: none, all that a device can join, or only
    elementwise ones, where each result can still be recorded, as the kernel of a group has it in a
    register. False and True are the first two.
    """

    NOTHING = 0
    ALL = 1
    ELEMENTWISE = 2


class Frame(NamedTuple):
    """One activation of a graph: the call that made it, in its parent's frame.

    Frame 0 is the run's graph. `step`: of a composite, whose definition the graph is, what it would
    be as one op.
    """

    parent: int  # -1 for frame 0
    graph: Graph
    statement: Statement | None  # the call, in the parent's body
    types: str = ""  # of a generic graph: ``<f16>``
    source: Source | None = None  # of the graph
    step: Step | None = None

    @property
    def name(self) -> str:
        """``attention``, ``attention<f16>``"""
        return self.graph.name.text + self.types


class Value(NamedTuple):
    """A tensor of the run: `name` as written in its frame; `buffer` where its bytes are.

    A named tensor has a value for each version: the one that the run finds, and one after each
    update. `buffer` is -1 where it never leaves the registers of a fused step.
    """

    name: str
    type: TensorType
    buffer: int
    frame: int


class Buffer(NamedTuple):
    """Bytes. `kind`: input, const, param (the named tensor `name`), temp or status.

    `offset` is its place in the plan's arena where the policy reuses memory and the kind is temp,
    else -1. Temp buffers include each op's workspace.
    """

    kind: str
    nbytes: int
    offset: int = -1
    name: str = ""
    literal: int | float | None = None  # the value of a const


@dataclass(slots=True)
class Step:
    """One op of the flattened graph: calls are inlined, their bodies keep their own frame.

    `operands` and `results` are value ids (an absent optional operand is None); `operand_types` are
    those after promotion. For control flow (`op.traits.host`) `graphs` names what it may call,
    `touched` are the values of named tensors (and the run's status) that those read or update,
    `changed` what they leave. `launches` and `workspace` are what the device made of the op.
    """

    op: type[Op]
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    operand_types: tuple[TensorType | None, ...]
    attrs: dict[str, Any]
    frame: int
    statement: Statement
    workspace: int = -1  # buffer id, -1 where the op needs none
    launches: Any = None
    reads: tuple[int, ...] = ()  # buffer ids
    writes: tuple[int, ...] = ()
    graphs: tuple[str, ...] = ()
    touched: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()
    members: tuple[Step, ...] = ()

    @property
    def inplace(self) -> tuple[int, ...]:
        """The operands whose buffer a result of equal type may take over."""
        views = self.attrs.get("views")
        return self.op.inplace if views is None else views.inplace

    @property
    def values_read(self) -> list[int]:
        """Operands that are not absent, and what graphs that it calls read or update."""
        return [v for v in (*self.operands, *self.touched) if v is not None]

    @property
    def values_written(self) -> tuple[int, ...]:
        """The values whose bytes it writes: none where it reinterprets its operand."""
        return () if self.op.traits.reinterprets else (*self.results, *self.changed)

    @property
    def is_joined(self) -> bool:
        """Whether other ranks have a part in it."""
        traits = self.op.traits
        return (traits.collective or traits.by_rank) and self.attrs["over"].size > 1


# Whether a device has a kernel for a step that is several in one, of these operands and results.
Takes = Callable[[Step, tuple[Any, ...]], bool]


class Alloc(NamedTuple):
    buffer: int
    stream: int


class Free(NamedTuple):
    buffer: int
    stream: int


class Fill(NamedTuple):
    """Fills a buffer with the NaN payload before its first write."""

    buffer: int
    stream: int


class Run(NamedTuple):
    """Launch the kernels of a step."""

    step: int
    stream: int


class Call(NamedTuple):
    """A step of control flow, run by the interpreter; the stream is ordered before and after it."""

    step: int
    stream: int


class Record(NamedTuple):
    event: int
    stream: int


class Wait(NamedTuple):
    """Later work on `stream` starts after `event` was reached."""

    event: int
    stream: int


class Sync(NamedTuple):
    """The host waits until the stream is idle."""

    stream: int


Instruction = Alloc | Free | Fill | Run | Call | Record | Wait | Sync


@dataclass(slots=True)
class Plan:
    """A graph for the interpreter to run. `inputs` and `outputs` are value ids.

    `start`: streams that must wait for the caller before their first instruction; `finish`: those
    that the caller must wait for.

    `scopes` has for each frame its names and their values: inputs and results of a call are the
    same value in the caller's scope and in the callee's, under two names.

    The last `commits` steps are updates that no other step comes after; they are issued last. So
    named tensors are as before until the first of them begins, but for those in `early`, which
    other steps change. `foreign` are the steps that other libraries compute, `unread` results of
    control flow that nothing reads.
    """

    graph: str
    policy: Policy
    values: list[Value]
    buffers: list[Buffer]
    steps: list[Step]
    frames: list[Frame]
    inputs: list[int]
    outputs: list[int]
    instructions: list[Instruction]
    streams: int  # how many are really used
    events: int
    arena: int  # bytes of the arena
    peak: int  # largest sum of simultaneously live temp buffers, bytes
    start: tuple[int, ...] = ()
    finish: tuple[int, ...] = ()
    scopes: list[dict[str, int]] = field(default_factory=list)
    commits: int = 0
    early: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()
    unread: frozenset[int] = frozenset()

    @property
    def signature(self) -> tuple[str, tuple[TensorType, ...]]:
        """The graph and the types of its inputs."""
        return self.graph, tuple(self.values[v].type for v in self.inputs)

    @property
    def in_words(self) -> str:
        """The graph and its largest tensor, for messages about memory."""
        values: Any = self.values  # of concrete types
        largest = max(values, key=lambda v: v.type.nbytes, default=None)
        of = "" if largest is None else f", whose largest tensor is {largest.name}, {largest.type}"
        return f"graph {self.graph}{of}"

    def composite(self, frame: int) -> int:
        """The frame of the outermost composite around one; -1 where there is none."""
        found = -1
        while self.frames[frame].step is not None:
            found, frame = frame, self.frames[frame].parent
        return found

    def text_frame(self, frame: int) -> int:
        """The frame of the program's text that a frame is of, which may be within a composite."""
        around = self.composite(frame)
        return frame if around < 0 else self.frames[around].parent

    def needs(self, given: Container[int] = ()) -> int:
        """Bytes of all its buffers but params and those that are `given`, by their numbers."""
        apart = (
            buffer.nbytes
            for k, buffer in enumerate(self.buffers)
            if buffer.offset < 0 and k not in given and buffer.kind not in ("param", "status")
        )
        return self.arena + sum(apart)

    def __str__(self) -> str:
        """The text form (`docs/plan.md`)."""
        from opstep.runtime.plan.text import format_plan

        return format_plan(self)
