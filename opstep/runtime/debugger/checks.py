"""Checks whether a run stops at a point, or after an op."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from opstep.runtime.debugger.activation import CALL, OP, Activation, Node, Point
from opstep.runtime.debugger.applied import producer_of
from opstep.runtime.debugger.breakpoints import EVERY, Breakpoint, Breakpoints
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.python.stack import is_backward_graph
from opstep.runtime.debugger.rerun import unwritten
from opstep.runtime.debugger.scope import FrameScope
from opstep.runtime.debugger.stop_point import StopPoint, hidden
from opstep.runtime.expressions import Expression, ExpressionError, Limits
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Apply
from opstep.runtime.plan.plan import Step

# What one evaluation of a condition may use, and how long all of one may take before they stop.
QUICK = Limits(bytes=1 << 28, seconds=2.0, work=1 << 31)
PATIENCE_S = 20.0


class Problem(NamedTuple):
    """Why a run stopped. `kind`: nan, inf, uninitialised, assert, device, or error for the rest;
    `node`: the result that shows it; `position`: the one after the op.
    """

    kind: str
    message: str
    node: Node | None
    position: int
    error: OpstepError | None = None


class Stop(NamedTuple):
    """Why a run stands still. `reason`: entry, step, breakpoint, function, data, exception, pause,
    goto, restart or end; `hits`: numbers of breakpoints.
    """

    reason: str
    text: str = ""
    thread: int = 0
    hits: tuple[int, ...] = ()
    exception: Problem | None = None


class Checks:
    """`on_output` gets log messages, and what is wrong with a condition, with the frame."""

    def __init__(
        self, machine: Machine, breakpoints: Breakpoints, stop_point: StopPoint,
        on_output: Callable[[str, Frame | None], object],
    ):  # fmt: skip
        self.machine = machine
        self.breakpoints = breakpoints
        self.stop_point = stop_point
        self.on_output = on_output
        self._seconds: dict[str, float] = {}  # seconds, by conditions

    def at_point(self, forwards: bool = True, than: int | None = None) -> Stop | None:
        """The breakpoints on the point that is next. Of those on lines of Python the outermost
        function's come first, on the way back the innermost's; `than`: only those that come after
        this level.
        """
        here = self.machine.history.next_point()
        if here is None or hidden(here):
            return None
        activation, point = here
        lines = self._lines(point)
        names = self._names(activation, point) if than is None else []
        if not lines and not names:
            return None
        key = id(point.statement)
        levels = sorted({b.levels[key] for b in lines if b.levels}, reverse=not forwards)
        for k, level in enumerate(levels or [-1]):
            if than is not None and (level <= than if forwards else level >= than):
                continue
            all_else = than is None and not k
            possible = [b for b in lines if b.levels.get(key, level if all_else else -1) == level]
            stop = self._stop_at(point, possible, names if all_else else [], level)
            if stop:
                return stop
        return None

    def _stop_at(
        self, point: Point, lines: list[Breakpoint], names: list[Breakpoint], level: int
    ) -> Stop | None:
        """At the level of the point's origin that these breakpoints are on."""
        self.stop_point.level = level if level >= 0 else None
        hits = tuple(b.number for b in [*lines, *names] if b.verified and self._hit(b))
        if not hits:
            self.stop_point.level = None
            return None
        by_name = any(b.number in hits for b in names)
        return Stop("function" if by_name else "breakpoint", thread=point.stream, hits=hits)

    def _lines(self, point: Point) -> list[Breakpoint]:
        return self.breakpoints.by_statement.get(id(point.statement), [])

    def _names(self, activation: Activation, point: Point) -> list[Breakpoint]:
        """Those on the graph that is entered here, on the op, and on what it computes."""
        table, plan, found = self.breakpoints, activation.plan, []
        if not (table.by_graph or table.by_op or table.by_value):
            return found
        if plan.frames[point.frame].step is not None:
            return found  # within an op
        graph = plan.frames[point.frame].graph.name.text
        if self.machine.history.index() in activation.points.entered:
            found += table.by_graph.get(graph, ())
        op, computed = self._applied(activation, point)
        found += table.by_op.get(op, ())
        for name in computed:
            found += table.by_value.get(name, ())
            found += table.by_value.get(f"{graph}.{name}", ())
        return found

    def _applied(self, activation: Activation, point: Point) -> tuple[str, list[str]]:
        """The op that is next, and what it computes; of a composite before its graph is entered."""
        plan = activation.plan
        if point.kind == OP:
            step = plan.steps[point.step]
            return step.op.name, [plan.values[v].name for v in step.results]
        if point.kind == CALL and isinstance(point.statement, Apply):
            inner = activation.points[self.machine.history.index() + 1].frame
            step = plan.frames[inner].step
            if step is not None:
                return step.op.name, [b.name.text for b in point.statement.results]
        return "", []

    def after_op(self) -> Stop | None:
        """A stop for what the op that was just passed has done; scopes are those after it."""
        machine = self.machine
        passed = machine.history.last_point()
        if passed is None:
            return None
        if passed[1].kind != OP:
            return self._after_control(machine.history.delivered())
        activation, point = passed
        step = activation.plan.steps[point.step]
        if step.op.traits.host:
            return None
        found = [(v, activation.env[v][1]) for v in step.results if v in activation.env]
        plan = activation.plan
        if plan.frames[point.frame].step is not None:  # not what it computes on the way
            found = [(v, n) for v, n in found if plan.frames[plan.values[v].frame].step is None]
        problem = self._problem_of(step, [node for _, node in found])
        if problem is not None:
            return Stop("exception", problem.kind, point.stream, (), problem)
        hits = self._changes(activation, point, found)
        return Stop("data", thread=point.stream, hits=hits) if hits else None

    def _after_control(self, delivered: list[tuple[Activation, int]]) -> Stop | None:
        """Data breakpoints on what control flow has given. (A fault of its was reported where it
        was computed.)
        """
        if not delivered:
            return None
        owner = delivered[0][0]
        found = [(v, owner.env[v][1]) for _, v in delivered if v in owner.env]
        here = self.machine.history.next_point()
        if here is None or here[0] is not owner:
            return None
        hits = self._changes(owner, here[1], found)
        return Stop("data", thread=here[1].stream, hits=hits) if hits else None

    # --- breakpoints ---

    def _hit(self, one: Breakpoint, extra: dict[str, Node] | None = None) -> bool:
        """Whether a breakpoint that was reached stops the run; it may write its message instead."""
        if one.condition is None and one.hit_test is None and one.parts is None:
            return True
        frame = self.stop_point.scope(None, extra, python=bool(one.levels))
        if one.condition is not None:
            what = f"condition {one.request.condition}"
            if not self._true(one.condition, what, frame):
                return False
        door = self.machine.door
        rank = door.rank if door else 0
        one.counts[rank] += 1
        if one.hit_test is not None and not one.hit_test(one.counts[rank]):
            return False
        if one.parts is not None:
            self.on_output(self._log_text(one.parts, frame), frame.frame)
            return False
        return True

    def _true(self, condition: Expression, what: str, scope: FrameScope) -> bool:
        """Whether a condition holds. One that cannot be evaluated stops, and says why; so does one
        that has taken long, each time that it has: who waits for a stop is not left without.
        """
        began = monotonic()
        try:
            if condition.holds(scope, QUICK):
                return True
        except ExpressionError as error:
            if scope.frame is not None and is_backward_graph(scope.frame.graph):
                return False  # the names of a line are those of the forward
            self.on_output(f"{what}: {error}", scope.frame)
            return True
        seconds = self._seconds.get(condition.text, 0.0) + monotonic() - began
        self._seconds[condition.text] = seconds if seconds < PATIENCE_S else 0.0
        if seconds >= PATIENCE_S:
            text = f"it has taken {seconds:.0f} seconds and did not hold: `continue` runs on"
            self.on_output(f"{what}: {text}", scope.frame)
        return seconds >= PATIENCE_S

    def _log_text(self, parts, scope: FrameScope) -> str:
        """A log message with the values of its expressions."""
        from opstep.runtime.expressions.text import value_text

        words = []
        for part in parts:
            if isinstance(part, str):
                words.append(part)
                continue
            try:
                words.append(value_text(part.evaluate(scope)))
            except ExpressionError as error:
                words.append(f"<{error}>")
        return "".join(words)

    # --- trouble ---

    def _problem_of(self, step: Step, nodes: list[Node]) -> Problem | None:
        filters = self.breakpoints.filters
        for node in nodes:
            found = self._odd(step, node) or self._unwritten(step, node)
            failed = node is not self.machine.history.named.no_failure
            if not found and "assert" in filters and step.op.name == "assert" and failed:
                found = self._problem("assert", f"assert failed: {step.attrs['message']}", node)
            if found:
                return found
        return None

    def _odd(self, step: Step, node: Node) -> Problem | None:
        breakpoints, executor = self.breakpoints, self.machine.executor
        kinds = [k for k in ("nan", "inf") if k in breakpoints.filters]
        if not kinds:
            return None
        nan, infinite = executor.nonfinite(node)
        present: dict[str, bool] = {"nan": nan, "inf": infinite}
        for kind in kinds:
            if not present[kind]:
                continue
            applied = producer_of(node)
            given = applied.sources if applied else ()
            which = ("nan", "inf").index(kind)
            came = any(executor.nonfinite(o)[which] for o in given if o is not None)
            if kind in breakpoints.origin_only and came:
                continue
            s = executor.statistics(node)
            count, word = (s.nan, "NaN") if kind == "nan" else (s.posinf + s.neginf, "inf")
            what = f"{count:,} {word} of {node.type.size:,} elements"
            op = applied.op if applied else step.op
            found = self._problem(kind, f"{node.name}, the result of {op.name}: {what}", node)
            if found:
                return found
        return None

    def _unwritten(self, step: Step, node: Node) -> Problem | None:
        machine, producer = self.machine, node.producer
        policy = machine.policy
        if "uninitialised" not in self.breakpoints.filters or policy.fill != "nan":
            return None
        if policy.sync != "op" or producer is None or producer.step is not step or node.index:
            return None
        for one in unwritten(machine.executor, producer):
            what = f"{one.count:,} of {one.node.type.size:,} elements of {one.node.name}"
            text = f"{step.op.name} never wrote {what}, the first at {list(one.first[0])}"
            return self._problem("uninitialised", text, one.node)
        return None

    def _problem(self, kind: str, text: str, node: Node) -> Problem | None:
        """None where the filter's condition does not hold."""
        condition = self.breakpoints.filters[kind]
        if condition is not None:
            scope = self.stop_point.scope(None, {"value": node, node.name: node})
            if not self._true(condition, f"filter {kind}", scope):
                return None
        return Problem(kind, text, node, self.machine.history.cursor)

    def _changes(self, activation: Activation, point: Point, found) -> tuple[int, ...]:
        """Data breakpoints on what the op computed, or updated."""
        plan, hits = activation.plan, []
        graph = plan.frames[plan.text_frame(point.frame)].graph.name.text
        for one in self.breakpoints.data:
            for v, node in found if one.verified else ():
                name = plan.values[v].name
                if one.request.name not in (EVERY, name, f"{graph}.{name}"):
                    continue
                if one.condition is None and not self._changed(activation, v, node):
                    continue
                if self._hit(one, {"value": node, name: node}):
                    hits.append(one.number)
                    break
        return tuple(hits)

    def _changed(self, activation: Activation, value: int, node: Node) -> bool:
        """Whether what was computed is another than before: a named tensor's version before, or
        what the op gave the last time, in another turn or step. The first time is a change.
        """
        machine = self.machine
        name = activation.points.named.get(value)
        if name is not None:
            before = machine.history.named.before(name, machine.history.cursor, 1)
        else:
            before = machine.history.computed_before(activation, value)
        return before is None or self._differs(before, node)

    def _differs(self, a: Node, b: Node) -> bool:
        if a is b or a.type != b.type:
            return a is not b
        executor = self.machine.executor
        return executor.array(a).tobytes() != executor.array(b).tobytes()
