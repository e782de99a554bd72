"""A composite from inside: the ops of its graph, run one by one on the operands that it had.

An overflow on the way may leave no trace in the result: the inverse of a deviation that is infinite
is 0. It is a fault where the result is not what it should be, and else without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import OP, Node, Producer
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.device.protocols import Device, Memory
from opstep.runtime.ir.interfaces import per_channel_of
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.verified import Verified
from opstep.runtime.nan.silent import SilentLoss, exact_result, wrong_elements
from opstep.runtime.plan.plan import DEBUG, Plan, Policy
from opstep.runtime.plan.planner import make_plan
from opstep.runtime.transforms.composite import Composite, definition

BUDGET = 1 << 30  # bytes of values on the way that are kept
OVERFLOWS = "overflows"
MOST = 1 << 26  # elements of operands up to which a result is computed in f64


class Overflow(NamedTuple):
    """The first op within a composite that makes an infinity or a NaN of finite operands. `verb`:
    overflows; else it is infinite, or NaN, and so it is in f64, or nobody knows.
    """

    op: str
    call: str  # ``square(away)``
    verb: str


class _Definition:
    """The graph of a composite, as a machine wants a program."""

    tensors: Mapping[str, Any] = {}
    shards: Mapping[str, Any] = {}

    def __init__(self, device: Device, verified: Verified):
        self.device = device
        self.verified = verified
        self._plans: dict[tuple, Plan] = {}

    def plan_for(self, graph: str, types: tuple[TensorType, ...], policy: Policy) -> Plan:
        key = graph, types, policy
        if key not in self._plans:
            self._plans[key] = make_plan(
                self.verified, graph, types, policy, prepare=self.device.prepare
            )
        return self._plans[key]

    def tensor(self, name: str) -> tuple[TensorType, Memory]:
        raise KeyError(name)


class Within:
    """Looks into composites that a machine has run. `overflows`: the first of each execution, by
    the id of its producer.
    """

    def __init__(self, machine: Machine, overflows: dict[int, Overflow]):
        self.executor = machine.executor
        self.device: Device = machine.host.device
        self.overflows = overflows
        self._producers: list[Producer] = []  # whose ids are in use
        self._hosts: dict[int, _Definition] = {}  # by the id of the definition, which is kept

    def losses(self, producer: Producer) -> list[SilentLoss | None]:
        """For each result of a composite what an overflow on the way has cost: finite elements that
        are wrong, and depend on it; none of them where it did no harm. None where nothing that the
        result depends on overflows, or nobody knows.
        """
        step, array = producer.step, self.executor.array
        assert issubclass(step.op, Composite)
        operands = self.executor.arrays(producer.operands)
        machine = self._machine(step.op, producer, operands)
        overflow = _poisoned(machine)
        if overflow is None:
            return []
        self.overflows[id(producer)] = overflow
        self._producers.append(producer)
        kind = "overflow" if overflow.verb == OVERFLOWS else "infinity"
        text = f"{overflow.op} {overflow.verb} on the way"
        exactly = self.device.name.partition(":")[0] in step.op.exact_on  # it was so in the kernel
        losses: list[SilentLoss | None] = []
        poisoned = map(machine.executor.array, machine.outputs())
        for k, (result, after) in enumerate(
            zip(map(array, producer.results), poisoned, strict=True)
        ):
            reached, exact, loss = np.isnan(after), None, None
            if reached.any():
                exact = exact_result(step, operands, k, result, MOST)
            if exact is not None:
                wrong = wrong_elements(exact, result) & reached
                harmless = exactly and bool(np.isfinite(result).all())
                loss = SilentLoss(kind, text, wrong) if harmless or wrong.any() else None
            losses.append(loss)
        return losses

    def _machine(
        self, op: type[Composite], producer: Producer, operands: list[np.ndarray | None]
    ) -> Machine:
        step = producer.step
        types = [producer.plan.values[v].type for v in step.operands if v is not None]
        verified = definition(op, types, step.attrs)
        host = self._hosts.setdefault(id(verified), _Definition(self.device, verified))
        names = [spec.name for spec in op.operands][: len(types)]
        arrays = [a for a in operands if a is not None]
        return Machine(host, op.name, arrays, types, names, DEBUG, 1, BUDGET)


def _poisoned(machine: Machine) -> Overflow | None:
    """Runs a definition to its end. An element that is infinite or NaN, and made of finite ones, is
    NaN from there on: so is, at the end, what depends on it. Gives the first op with such elements.
    """
    executor, first = machine.executor, None
    while (here := machine.history.next_point()) is not None:
        activation, point = here
        machine.forward()
        if point.kind != OP:
            continue
        step = activation.plan.steps[point.step]
        made = activation.env[step.results[0]][1].producer
        if made is None:
            continue
        for value, node in zip(step.results, made.results, strict=True):
            if not any(executor.nonfinite(node)):
                continue
            array = executor.array(node)
            born = _born(executor, made, array)
            if born.any():
                first = first or _overflow_of(executor, made, node)
                poison = np.where(born, np.nan, array)
                machine.history.set(activation, value, point.frame, node.name, poison)
    return first


def _born(executor: Executor, made: Producer, result: np.ndarray) -> np.ndarray:
    """A mask of the elements of a result that are not finite though all are that they are made of.
    Of other ops than elementwise ones and reductions it is all or none, by the whole operands.
    """
    step, bad = made.step, ~np.isfinite(result)
    operands = [o for o in made.operands if o is not None]
    given = [executor.nonfinite(o) for o in operands]
    if not any(map(any, given)):
        return bad
    odd = [~np.isfinite(executor.array(o)) for o in operands]
    if step.op.element is not None and not per_channel_of(step.op):
        return bad & ~np.logical_or.reduce([np.broadcast_to(o, result.shape) for o in odd])
    if len(odd) == 1 and "axes" in step.attrs:
        folded = odd[0].any(axis=tuple(step.attrs["axes"] or range(odd[0].ndim)))
        if folded.size == result.size:
            return bad & ~folded.reshape(result.shape)
    some = any(infinite for _, infinite in given) or not np.isinf(result).any()
    return np.zeros_like(bad) if some else bad


def _overflow_of(executor: Executor, made: Producer, node: Node) -> Overflow:
    """The fault of `made`, which has given a result that is not finite."""
    step, result = made.step, executor.array(node)
    operands = executor.arrays(made.operands)
    exact = exact_result(step, operands, node.index, result, MOST)
    verb = "is infinite" if np.isinf(result).any() else "is NaN"
    if exact is not None and (np.isfinite(exact) & ~np.isfinite(result)).any():
        verb = OVERFLOWS
    return Overflow(step.op.name, print_statement(step.statement).partition(" = ")[2], verb)
