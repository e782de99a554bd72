"""What is known of tensors, ops and memory beside elements: texts by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opstep.dap.frames import FrameHandle
from opstep.dap.tensor_origins import (
    ComputedTensor,
    NamedTensor,
    Opened,
    Variable,
    VariableWriter,
    target_of,
)
from opstep.runtime.debugger.applied import producer_of

if TYPE_CHECKING:
    from opstep.runtime.debugger.activation import Node
    from opstep.runtime.debugger.executor import Executor
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.ir.graph import Source, Span
    from opstep.runtime.plan.plan import Step

READ_ONLY: dict[str, Any] = {"attributes": ["readOnly"]}
VIRTUAL: dict[str, Any] = {"kind": "virtual", "attributes": ["readOnly"]}
Entries = list[tuple[str, Any]]  # a text; a tensor; or a text and what opens


class Fields(Opened):
    """Names with texts, or with things that can be opened in turn; made when it is opened."""

    indexed = 0

    def __init__(self, entries: Callable[[], list[tuple[str, Any]]]):
        self._make_entries = entries
        self._entries: list[tuple[str, Any]] | None = None

    @property
    def entries(self) -> list[tuple[str, Any]]:
        if self._entries is None:
            self._entries = self._make_entries()
        return self._entries

    @property
    def named(self) -> int:
        return len(self.entries)

    @property
    def counted(self) -> bool:
        """Whether how many there are is known before it is opened."""
        return self._entries is not None

    def page(self, w: VariableWriter, kind: str, start: int, stop: int) -> list[Variable]:
        return [self._one(w, name, value) for name, value in self.entries[start:stop]]

    def _one(self, w: VariableWriter, name: str, value: Any) -> Variable:
        if isinstance(value, (NamedTensor, ComputedTensor)):
            return w.tensor(name, value)
        if isinstance(value, tuple):
            text, of = value
            return w.opening(name, text, of, presentationHint=READ_ONLY)
        return w.plain(name, str(value), presentationHint=READ_ONLY)

    def target(self, name: str) -> tuple[FrameHandle, str] | None:
        found = dict(self.entries).get(name)
        return target_of(found, ()) if isinstance(found, (NamedTensor, ComputedTensor)) else None


# --- a tensor -------------------------------------------------------------------------------------


def statistics_fields(s: Any) -> Entries:
    """Each figure by its name, and the histogram."""
    from opstep.runtime.expressions.text import value_text
    from opstep.runtime.statistics import LOWEST

    names = ("count", "mean", "std", "min", "max", "l2", "absmax", "nan", "posinf", "neginf")
    found: Entries = []
    for name in (*names, "zero", "subnormal", "unwritten"):
        value = getattr(s, name)
        if value is not None:
            found.append((name, f"{value:,}" if type(value) is int else value_text(value)))
    bins = [(k + LOWEST, n) for k, n in enumerate(s.histogram) if n]
    if bins:
        rows = [(f"2^{e} to 2^{e + 1}", f"{n:,}") for e, n in bins]
        found.append(("histogram", (f"{len(bins)} bins of abs(x)", Fields(lambda: [*rows]))))
    return found


def producer_fields(node: Node, executor: Executor) -> tuple[Fields | None, str]:
    """The op that computed a tensor, with its operands as they were, and its statement."""
    from opstep.runtime.debugger.scope import Handle
    from opstep.runtime.ir.printer import print_statement

    producer = producer_of(node)
    if producer is None:
        return None, ""
    names = operand_names(producer.step.op, len(producer.operands))
    entries: Entries = [
        (f"{name} ({o.name})" if o.name else name, ComputedTensor(Handle(executor, o)))
        for name, o in zip(names, producer.operands, strict=True)
        if o is not None
    ]
    return Fields(lambda: entries), print_statement(producer.step.statement)


def operand_names(op: Any, count: int) -> list[str]:
    """What an op calls its operands."""
    specs = [s.name for s in op.operands]
    if op.operands and op.operands[-1].variadic:
        specs[-1:] = [f"{specs[-1]}{k}" for k in range(count - len(specs) + 1)]
    return [*specs, *(f"operand {k}" for k in range(len(specs), count))][:count]


def declared(frame_handle: FrameHandle, name: str, node: Node) -> tuple[Source, Span] | None:
    """Where a name of a frame is written first."""
    frame = frame_handle.frame
    for binding in frame.graph.inputs:
        if binding.name.text == name:
            return (frame.source, binding.name.span) if frame.source else None
    for statement in frame.graph.body:
        for result in getattr(statement, "results", ()):
            if result.name.text == name:
                return (frame.source, result.name.span) if frame.source else None
    tensor: Any = frame.machine.host.tensors.get(name)
    if tensor is None:
        return None
    texts = getattr(frame.machine.host, "texts", list)()
    return (texts[0].source, tensor.name.span) if texts else None


# --- an op ----------------------------------------------------------------------------------------


def op_entries(frame_handle: FrameHandle) -> Entries:
    """The statement that a frame stands at: operands, attributes, results, what it costs."""
    from opstep.runtime.ir.graph import Apply
    from opstep.runtime.ir.printer import print_statement, print_value

    frame, statement = frame_handle.frame, frame_handle.frame.statement
    if statement is None:
        return []
    step = frame.step
    found: Entries = [("statement", print_statement(statement))]
    for name, operand in _operands(statement, step):
        visible = isinstance(operand, str) and frame.lookup(operand) is not None
        text = operand if isinstance(operand, str) else print_value(operand)
        found.append((name, NamedTensor(frame_handle, text) if visible else text))
    attrs = step.attrs.items() if step else [
        (a.name.text, a.value) for a in getattr(statement, "attrs", ())
    ]  # fmt: skip
    found += [(name, print_value(value)) for name, value in attrs]
    if isinstance(statement, Apply):
        for result in statement.results:
            if frame.lookup(result.name.text) is not None:
                found.append(
                    (f"-> {result.name.text}", NamedTensor(frame_handle, result.name.text))
                )
    return found + (_cost(frame, step) if step else [])


def _operands(statement: Any, step: Step | None) -> Entries:
    """What a statement takes, by the names that the op has for it."""
    from opstep.runtime.ir.op import OPS

    parts: dict[str, Any] = {
        key: getattr(statement, key) for key in ("condition", "value") if hasattr(statement, key)
    }
    if parts:
        return [(key, _operand_text(part)) for key, part in parts.items()]
    operands = getattr(statement, "operands", None) or getattr(statement, "values", ())
    callee = getattr(statement, "callee", None)
    op = step.op if step else OPS.get(callee.text) if callee else None
    names = (
        operand_names(op, len(operands)) if op else [f"operand {k}" for k in range(len(operands))]
    )
    return [(name, _operand_text(one)) for name, one in zip(names, operands, strict=True)]


def _operand_text(part: Any) -> Any:
    return part.text if hasattr(part, "text") else part.value


def _cost(frame: Frame, step: Step) -> Entries:
    if step.op.traits.host or step.op.family == "internal":
        return []
    values = frame.activation.plan.values
    types = [values[v].type for v in (*step.operands, *step.results) if v is not None]
    sizes: list[Any] = [t.nbytes for t in types]
    flops: Any = step.op.flops(*step.operand_types, **step.attrs)
    found: Entries = [("FLOPs", f"{int(flops):,}"), ("moves", f"{sum(sizes):,} bytes")]
    if step.workspace >= 0:
        nbytes = frame.activation.plan.buffers[step.workspace].nbytes
        found.append(("working memory", f"{nbytes:,} bytes"))
    return found


# --- memory ---------------------------------------------------------------------------------------


def memory_entries(frame_handle: FrameHandle) -> Entries:
    """Where values are, and what the debugger holds."""
    machine = frame_handle.frame.machine
    executor, plan = machine.executor, frame_handle.frame.activation.plan
    policy = machine.policy
    rows: Entries = [(name, _bytes(node)) for name, node in frame_handle.frame.names().items()]
    groups = [rows[k : k + 100] for k in range(0, len(rows), 100)]
    entries: Entries = rows
    if len(groups) > 1:
        entries = [(f"{g[0][0]} … {g[-1][0]}", (f"{len(g)} values", _fields(g))) for g in groups]
    return [
        ("device", executor.device.name),
        ("how it runs", f"streams={policy.streams} alloc={policy.alloc} fill={policy.fill} "
                     f"sync={policy.sync}"),
        ("kept for stepping back", f"{executor.bytes_held:,} bytes"),
        ("most of it", f"{executor.budget:,} bytes; more is computed again when wanted"),
        ("reserved for this graph", f"{plan.arena:,} bytes"),
        ("in use at most", f"{plan.peak:,} bytes"),
        ("ops run", f"{executor.computed:,}"),
        ("values", (f"{len(rows):,}", _fields(entries))),
    ]  # fmt: skip


def _fields(entries: Entries) -> Fields:
    return Fields(lambda: entries)


def _bytes(node: Node) -> str:
    size = f"{node.type.nbytes:,} bytes"
    return f"{node.address:#x}  {size}" if node.present else f"not kept  {size}"
