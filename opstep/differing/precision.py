"""Where a graph loses precision: each op's result beside what arithmetic in f64 gives.

found = opstep.differing.precision.precision(program, "main", {"x": x})
found.losses[0].statement, found.losses[0].added
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.api.debugging import ProgramHost
from opstep.api.inputs import conform, inputs_for
from opstep.api.settings import RunSettings
from opstep.differing.errors import TOLERANCE, Error, error_of
from opstep.runtime.debugger.activation import OP, Node, Producer
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Source
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.nan.silent import silent_losses
from opstep.runtime.plan.plan import DEBUG

if TYPE_CHECKING:
    from opstep.api.program import Program

BUDGET = 1 << 30  # bytes of results that are kept


class Loss(NamedTuple):
    """An op's result in the run of it that adds most error, of `runs`.

    `total`: its error against a run of all the graph in f64; `came`: the largest such error of an
    operand, `through`; `own`: what the op itself adds: against f64 arithmetic on the operands that
    it had. `lost`: what happened to elements that its type of integers cannot hold.
    """

    op: str
    value: str
    type: str
    file: str
    line: int
    statement: str
    step: int
    runs: int
    came: float
    through: str
    own: Error
    total: Error
    lost: str = ""

    @property
    def added(self) -> float:
        """The error that came to be here; infinite where numbers became NaN or infinite, or
        wrapped.
        """
        return float("inf") if self.own.unlike or self.lost else self.total.most - self.came

    @property
    def tolerance(self) -> float:
        """What rounding to the result's type makes."""
        return TOLERANCE.get(self.type.partition("[")[0], 0.0)

    @property
    def what(self) -> str:
        """What is wrong with it; "" where it is as rounding makes it."""
        if self.lost:
            return self.lost
        if self.own.unlike:
            bad = "NaN" if self.own.got != self.own.got else "infinite"
            return f"{self.own.unlike:,} of {self.own.size:,} elements become {bad}"
        if self.own.zeroed:
            return f"{self.own.zeroed:,} of {self.own.size:,} elements become 0"
        if self.added <= self.tolerance:
            return ""
        rounds = self.own.most > self.tolerance
        return "rounding on the way" if rounds else f"the error of {self.through} grows"


@dataclass
class Precision:
    """`losses`: of each op and place that gives floats, or integers that are off, those that add
    most first. `outputs`: errors of outputs and updated tensors after the last step, by name;
    `allowed`: how large each may be. `unmeasured`: statements whose op has no meaning in NumPy.
    """

    graph: str
    steps: int = 0
    losses: list[Loss] = field(default_factory=list)
    outputs: dict[str, Error] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)
    unmeasured: list[str] = field(default_factory=list)
    error: OpstepError | None = None  # what ended the run

    @property
    def fine(self) -> bool:
        """Whether all was measured, no integer wrapped, and all outputs are as exact as their types
        let them be.
        """
        measured = not self.error and not self.unmeasured
        return measured and not any(one.lost for one in self.losses) and not self.outside

    @property
    def outside(self) -> list[str]:
        """Outputs that are off by more than they may be."""
        return [n for n, e in self.outputs.items() if e.unlike or e.most > self.allowed[n]]


def precision(
    program: Program, graph: str | None = None, inputs: Mapping[str, Any] | None = None, *,
    device: str = "cpu", threads: int | None = None, kernels: str = "auto", steps: int = 1,
    tolerance: float | None = None,
) -> Precision:  # fmt: skip
    """Runs a graph op by op, and beside it the ops' oracles in f64, on what they gave before.
    Literals and what named tensors are declared to begin as are not rounded there. Control flow
    goes as the graph's own values say; inputs, loaded tensors and random numbers count as exact.

    `tolerance`: the relative error that floats may have, by default that of `TOLERANCE` for their
    type; integers and bools have none. Named tensors stay as they are. Raises `OpstepError` where
    the program cannot be run.
    """
    declared = program.graph(graph)
    arrays, types = conform(declared, inputs_for(program, declared, inputs), program.module.source)
    names = [b.name.text for b in declared.inputs]
    name, inputs_by_name = declared.name.text, dict(zip(names, arrays, strict=True))
    settings = RunSettings(device=device, threads=threads, kernels=kernels, steps=steps)
    host: Any = ProgramHost(program, name, inputs_by_name, settings)
    machine = Machine(host, name, arrays, types, names, DEBUG, steps, BUDGET)
    return _Measurement(program, machine, Precision(name), tolerance).run()


class _Measurement:
    """A machine's run, and the same in f64."""

    def __init__(
        self, program: Program, machine: Machine, result: Precision, tolerance: float | None
    ):
        self.program = program
        self.machine = machine
        self.result = result
        self.tolerance = tolerance
        self.exact: dict[int, tuple[Node, np.ndarray, float]] = {}  # by id: and its error
        self.found: dict[tuple, Loss] = {}

    def run(self) -> Precision:
        machine, result = self.machine, self.result
        try:
            for step, producers in enumerate(self._steps()):
                left = _uses(producers)
                for producer in producers:
                    self._measure(producer, step)
                    for node in producer.operands:
                        if node is not None:
                            left[id(node)] -= 1
                            if not left[id(node)] and id(node) not in self._needed():
                                self.exact.pop(id(node), None)
                result.steps = step + 1
        except OpstepError as error:
            result.error = error
        result.losses = sorted(self.found.values(), key=lambda one: -one.added)
        if machine.history.finished:
            self._outputs()
        return result

    def _steps(self) -> Iterator[list[Producer]]:
        """The ops of each step, once it is done."""
        machine, producers, done = self.machine, [], 0
        while (position := machine.history.next_point()) is not None:
            activation, point = position
            machine.forward()
            step = activation.plan.steps[point.step] if point.kind == OP else None
            if step is not None and not step.op.traits.host and step.op.family != "internal":
                producers.append(_producer(activation.env[step.results[0]][1]))
            if len(machine.history.finished) > done:
                done = len(machine.history.finished)
                yield producers
                producers = []

    def _needed(self) -> set[int]:
        """What later steps, or the outputs, come from."""
        latest = [versions[-1][1] for _, versions in self.machine.history.named.items()]
        nodes = [*latest, *self.machine.outputs()]
        sources = [_producer(n).operands[0] for n in nodes if _converts(n)]
        return {id(n) for n in (*nodes, *sources) if n is not None}

    # --- one op ---

    def _measure(self, producer: Producer, step: int) -> None:
        executor = self.machine.executor
        actual = executor.arrays(producer.operands)
        wanted = [None if o is None else self._in_f64(o) for o in producer.operands]
        got = [executor.array(n) for n in producer.results]
        errors = [(e[1], o.name) for e, o in zip(wanted, producer.operands, strict=True) if e and o]
        came = max(errors, default=(0.0, ""))
        own: list[np.ndarray] | None = got
        exact: list[np.ndarray] | None = [a.astype(_wide(a)) for a in got]
        if self._rounds(producer, actual, wanted):
            own = _computed(producer, actual)
            exact = _computed(producer, [None if e is None else e[0] for e in wanted])
        for k, node in enumerate(producer.results):
            if own is None or exact is None:
                self._leave_out(producer)
                self.exact[id(node)] = (node, got[k].astype(_wide(got[k])), came[0])
                continue
            total, lost = error_of(got[k], exact[k]), _lost(producer, actual, got, k)
            self.exact[id(node)] = (node, exact[k], total.most)
            counts = (
                node.type.dtype.is_float and own is not got and not producer.op.traits.reinterprets
            )
            if counts or lost or (total.most and not node.type.dtype.is_float):
                own_error = error_of(got[k], own[k])
                loss = self._loss(producer, node, step, came, own_error, total)
                self._add(loss._replace(lost=lost), producer, k)

    def _rounds(self, producer: Producer, actual: list[Any], wanted: list[Any]) -> bool:
        """Whether an op's results can be others in f64: not where it draws them, nor where it takes
        and gives integers that are as they would be there.
        """
        there = [(a, e[0]) for a, e in zip(actual, wanted, strict=True) if a is not None]
        floats = [o is not None and o.type.dtype.is_float for o in producer.operands]
        if producer.op.family == "random" and not any(floats):
            return False
        given = any(floats) or any(n.type.dtype.is_float for n in producer.results)
        return given or not all(np.array_equal(a, e) for a, e in there)

    def _in_f64(self, node: Node) -> tuple[np.ndarray, float]:
        """What it would be in f64, and its error."""
        computed = self.exact.get(id(node))
        if computed is None and _converts(node):
            (value, *_) = _producer(node).operands
            assert value is not None
            return self._in_f64(value)
        if computed is None:
            array = self.machine.executor.array(node)
            exact = self._declared(node, array)
            computed = (node, exact, error_of(array, exact).most)
            self.exact[id(node)] = computed
        return computed[1], computed[2]

    def _declared(self, node: Node, array: np.ndarray) -> np.ndarray:
        """A value from outside: as the text has it where that is a number, or counted."""
        machine, exact = self.machine, None
        if node.type.dtype.is_float:
            exact = machine.executor.literal(node)
            if exact is None and node.name in machine.host.tensors:
                exact = self._initial(node.name)
        if exact is not None:
            wide = np.broadcast_to(np.float64(exact), array.shape)
            with np.errstate(all="ignore"):  # else it was loaded, or has been trained
                if wide.astype(array.dtype).tobytes() == array.tobytes():
                    return wide
        return array.astype(_wide(array))

    def _initial(self, name: str) -> np.ndarray | None:
        """The declared start of a named tensor, not rounded; None where it is drawn, or
        loaded.
        """
        declared, found = self.program.module.tensors[name], self.program.verified.inits.get(name)
        if declared.value is not None:
            return np.asarray(declared.value.value, np.float64)
        if found is None or found.op is None or found.op.family != "creation":
            return None
        attrs = dict(found.attrs)
        return np.asarray(found.op.oracle(**attrs), np.float64)

    def _loss(
        self, producer: Producer, node: Node, step: int, came: tuple[float, str], own: Error,
        total: Error,
    ) -> Loss:  # fmt: skip
        source, line, statement = _place(producer)
        return Loss(
            producer.op.name, node.name, str(node.type), str(source.path) if source else "", line,
            statement.strip(), step, 1, *came, own, total,
        )  # fmt: skip

    def _add(self, loss: Loss, producer: Producer, index: int) -> None:
        source, line, statement = _place(producer)
        key = (id(source), line, statement, index)
        before = self.found.get(key)
        if before is not None:
            worse = loss if loss.added > before.added else before
            loss = worse._replace(runs=before.runs + 1)
        self.found[key] = loss

    def _leave_out(self, producer: Producer) -> None:
        source, line, statement = _place(producer)
        place = f"{source.path if source else '<text>'}:{line}: {statement.strip()}"
        if place not in self.result.unmeasured:
            self.result.unmeasured.append(place)

    # --- in the end ---

    def _outputs(self) -> None:
        machine = self.machine
        last = machine.history.finished[-1][1].plan
        ends = [
            (last.values[v].name, n) for v, n in zip(last.outputs, machine.outputs(), strict=True)
        ]
        ends += [(n, v[-1][1]) for n, v in machine.history.named.items() if len(v) > 1]
        for name, node in ends:
            exact, _ = self._in_f64(node)
            self.result.outputs[name] = error_of(machine.executor.array(node), exact)
            allowed = TOLERANCE.get(node.type.dtype.name, 0.0)
            if self.tolerance is not None and node.type.dtype.is_float:
                allowed = self.tolerance
            self.result.allowed[name] = allowed


def _place(producer: Producer) -> tuple[Source | None, int, str]:
    """The file, line and text of its statement."""
    plan, statement = producer.plan, producer.step.statement
    source = plan.frames[producer.step.frame].source
    line = source.locate(statement.span.start)[0] if source and statement.span.end else 0
    return source, line, print_statement(statement)


def _lost(producer: Producer, operands: list[Any], results: list[np.ndarray], k: int) -> str:
    """The fate of numbers that a type of integers does not hold."""
    if results[k].dtype.kind not in "iu":
        return ""
    lost = silent_losses(producer.step, operands, results, k, {"overflow"})
    amounts = [f"{one.mask.sum():,} of {one.mask.size:,} elements: {one.text}" for one in lost]
    return "; ".join(amounts)


def _computed(producer: Producer, operands: list[Any]) -> list[np.ndarray] | None:
    """The results by the op's oracle; None where it cannot be asked."""
    step, arguments = producer.step, []
    for a, t in zip(operands, step.operand_types, strict=False):
        wanted = step.op.traits.bits and t is not None and t.dtype.numpy
        arguments.append(None if a is None or t is None else a.astype(wanted or _promoted(t)))
    while arguments and arguments[-1] is None:
        arguments.pop()
    attrs = step.attrs
    if step.op.name == "cast" and attrs["dtype"].is_float:
        return [arguments[0].astype(np.float64)]
    try:
        with np.errstate(all="ignore"):
            found = step.op.oracle(*arguments, **attrs)
    except Exception:  # an oracle that wants other operands; what it is asked is not its text
        return None
    arrays = [np.asarray(f) for f in (found if isinstance(found, (tuple, list)) else (found,))]
    shapes = [n.type.shape for n in producer.results]
    return arrays if [a.shape for a in arrays] == shapes else None


def _promoted(t: TensorType) -> Any:
    """As an oracle takes operands of that type."""
    return np.float64 if t.dtype.is_float else t.dtype.numpy


def _wide(array: np.ndarray) -> Any:
    return array.dtype if array.dtype.kind in "iub" else np.float64


def _producer(node: Node) -> Producer:
    assert node.producer is not None
    return node.producer


def _converts(node: Node) -> bool:
    """Whether it is what an update made of a value of another type."""
    return node.producer is not None and node.producer.op.family == "internal"


def _uses(producers: list[Producer]) -> Counter[int]:
    """How many ops take a node in, by its id."""
    return Counter(id(n) for p in producers for n in p.operands if n is not None)
