"""Kernels of a run: which there are, and their code as instructions with addresses."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.dap.registry import DapError

if TYPE_CHECKING:
    from opstep.dap.session import Session
    from opstep.runtime.debugger.frames import Frame
    from opstep.runtime.device.disassembly import Section
    from opstep.runtime.ir.graph import Graph
    from opstep.runtime.ir.types import TensorType
    from opstep.runtime.plan.plan import Plan, Step

NO_CODE = 2230
APART = 1 << 32  # addresses of one op's listing
WIDTH = 16  # addresses of an instruction
MOST_STEPS = 5_000  # different ops of a plan whose kernels are told


class KernelInfo(NamedTuple):
    """A kernel that an op launches. `compiled`: its entry point on the CPU; what CUDA compiles."""

    op: str
    target: str
    function: Any
    compiled: Any

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def definition(self) -> tuple[str, int]:
        code = inspect.unwrap(self.function).__code__
        return code.co_filename, code.co_firstlineno


def target_of(session: Session) -> str:
    """The architecture that kernels are compiled for; "cpu" on the CPU."""
    device = session.debugger.machine.executor.device
    return device.arch or device.kernels


def kernels_of(session: Session, plan: Plan, step: Step) -> list[KernelInfo]:
    """Those of an op, in the order of their launches; of our own kernels, not of libraries."""
    from opstep.runtime.device.disassembly import compiled_at
    from opstep.runtime.ir.op import Mismatch

    if (
        step.op.traits.host
        or step.op.traits.reinterprets
        or step.op.traits.foreign
        or not step.launches
    ):
        return []
    target = target_of(session)
    if target == "cpu":
        entries = [launch.entry for launch in step.launches]
        pairs = [(compiled_at(entry), entry) for entry in dict.fromkeys(entries)]
        return [
            KernelInfo(step.op.name, target, compiled[0], e) for compiled, e in pairs if compiled
        ]
    from opstep.runtime.debugger.kernel.launches import lowered

    try:
        prepared, _ = lowered(step, types_of(plan, step), "cuda", target)
    except (Mismatch, NotImplementedError):
        return []
    kernels = dict.fromkeys(p.kernel for p in prepared)
    return [KernelInfo(step.op.name, target, k.function, k) for k in kernels]


def types_of(plan: Plan, step: Step) -> tuple[TensorType | None, ...]:
    """Of an op's operands as they are stored, and of its results."""
    operands = [None if v is None else plan.values[v].type for v in step.operands]
    operands += [None] * (len(step.operand_types) - len(operands))
    return (*operands, *(plan.values[v].type for v in step.results))


# --- listings -------------------------------------------------------------------------------------


class Line(NamedTuple):
    """An instruction, or what else stands in a listing."""

    text: str
    symbol: str = ""
    place: tuple[str, int] | None = None  # file and line of what it was made from


class StatementHere(NamedTuple):
    """The statement of a graph that a function of Python stands at."""

    frame: Frame


class Here:
    """The op whose code a frame's instruction pointer refers to."""

    def __init__(self, frame: Frame, step: Step):
        self.plan = frame.activation.plan
        self.step = step


class Listings:
    """``session.per_session(Listings)``: each op's code once, at addresses of its own."""

    def __init__(self, session: Session):
        self.session = session
        self._numbers: dict[Any, int] = {}
        self._lines: list[list[Line]] = []
        self._graphs: list[Graph] = []  # whose ids are keys

    def of(self, location: Here) -> int:
        """The address of an op's code."""
        attrs = repr(list(location.step.attrs.values()))
        key = (
            location.step.op,
            types_of(location.plan, location.step),
            attrs,
            target_of(self.session),
        )
        if key not in self._numbers:
            lines = _lines(self.session, location.plan, location.step)
            self._numbers[key] = len(self._lines)
            self._lines.append(lines)
        return (self._numbers[key] + 1) * APART

    def of_graph(self, frame: Frame) -> int:
        """The address of the statement that a frame stands at, in its graph's listing."""
        key = id(frame.graph)
        if key not in self._numbers:
            self._numbers[key] = len(self._lines)
            self._lines.append(_statements(self.session, frame.graph))
            self._graphs.append(frame.graph)
        body = frame.graph.body
        at = next((k for k, s in enumerate(body) if s is frame.statement), len(body) - 1)
        return (self._numbers[key] + 1) * APART + at * WIDTH

    def lines(self, address: int) -> tuple[list[Line], int]:
        """The listing that an address lies in, and where it begins. Raises `DapError`."""
        number = address // APART - 1
        if not 0 <= number < len(self._lines):
            raise DapError(f"there is no code at {address:#x}", NO_CODE)
        return self._lines[number], (number + 1) * APART


def _statements(session: Session, graph: Graph) -> list[Line]:
    """A graph's text, with the lines of Python that its statements came from."""
    from opstep.runtime.ir.printer import print_statement

    lines, found = session.debugger.stop_point.lines, []
    for statement in graph.body:
        origin = lines.shown(graph, statement)
        place = (origin.lines[-1].path, origin.lines[-1].line) if origin else None
        found.append(Line(print_statement(replace(statement, at=None)), "", place))
    if found:
        found[0] = found[0]._replace(symbol=graph.name.text)
    return found


def _lines(session: Session, plan: Plan, step: Step) -> list[Line]:
    found: list[Line] = []
    for kernel in kernels_of(session, plan, step):
        for section in sections_of(kernel):
            title = f"; {kernel.name} ({step.op.name}): {section.title}"
            place = None if kernel.definition[0].startswith("<") else kernel.definition
            if section.obstacle:
                found.append(Line(f"{title}: none, as {section.obstacle}", "", place))
                continue
            found.append(Line(title, kernel.name, place))
            found += [Line(text.expandtabs(8)) for text in section.lines if text.strip()]
    return found or [Line(f"; {step.op.name} runs no kernel of opstep's own")]


def sections_of(kernel: KernelInfo) -> list[Section]:
    """The texts of a kernel's code; kernels that are compiled for that are shown."""
    from opstep.runtime.device.disassembly import cpu_sections, cuda_sections

    if kernel.target == "cpu":
        return cpu_sections(kernel.compiled)
    return cuda_sections(kernel.compiled, kernel.target)


def code_reference(session: Session, frame: Frame) -> str:
    """What stands for the code of the op at the innermost frame; "" where there is none."""
    if frame.number:
        return ""
    step = frame.step
    if step is None or step.op.traits.host or not step.launches:
        return ""
    number = session.references.add(Here(frame, step), ("code", frame.number))
    return f"code:{number}"


def statement_reference(session: Session, frame: Frame) -> str:
    """What stands for the statement of the graph that a function of Python stands at."""
    return f"graph:{session.references.add(StatementHere(frame), ('statement', frame.number))}"


def address_of(session: Session, reference: str) -> int:
    """The address that a reference of code, or a number, means. Raises `DapError`."""
    kind, _, number = reference.partition(":")
    try:
        if kind == "code":
            location = session.references.get(int(number[:16]), Here, "code")
            return session.per_session(Listings).of(location)
        if kind == "graph":
            at = session.references.get(int(number[:16]), StatementHere, "code")
            return session.per_session(Listings).of_graph(at.frame)
        return int(reference[:40], 0)
    except ValueError:
        raise DapError(f"{reference[:80]!r} is not code", NO_CODE) from None
