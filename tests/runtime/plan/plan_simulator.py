"""Runs programs and plans on symbols instead of numbers, to see that they mean the same.

A symbol stands for what an op makes of its operands' symbols; equal computations give equal
symbols. A plan runs on memory that has a symbol for each byte, with its streams interleaved at
random.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from opstep.runtime.ir.graph import Apply, Assert, Literal, Return, Update
from opstep.runtime.ir.verified import Verified
from opstep.runtime.plan.internal import snapshot
from opstep.runtime.plan.plan import Call, Fill, Plan, Record, Run, Sync, Wait


class Symbols:
    """Numbers for computations: the same for the same op on the same operands."""

    def __init__(self) -> None:
        self._numbers: dict[tuple, int] = {}

    def of(self, *parts) -> int:
        return self._numbers.setdefault(parts, len(self._numbers))

    def op(self, name: str, attrs, operands) -> int:
        shown = tuple((k, repr(v)) for k, v in attrs.items() if k != "message")
        return self.of(name, shown, tuple(operands))

    def const(self, value) -> int:
        return self.of("const", repr(float(value)))


def evaluate(program: Verified, graph: str, symbols: Symbols) -> dict[str, int]:
    """What a program means, statement by statement: outputs by number, tensors by name."""
    tensors = {name: symbols.of("param", name) for name in program.tensors}
    tensors[""] = symbols.of("status")
    codes: dict[int, int] = {}
    count = len(program.graphs[graph].graph.inputs)
    outputs = _run_graph(
        program, graph, [symbols.of("input", k) for k in range(count)], tensors, codes, symbols
    )
    return {str(k): s for k, s in enumerate(outputs)} | {
        f"tensor {n}": s for n, s in tensors.items()
    }


def _run_graph(program, graph, inputs, tensors, codes, symbols) -> list[int]:
    found = program.graphs[graph]
    names = dict(zip((b.name.text for b in found.graph.inputs), inputs, strict=True))
    updates, returned = [], []

    def read(o):
        if isinstance(o, Literal):
            return symbols.const(o.value)
        return names[o.text] if o.text in names else tensors[o.text]

    for s, application in zip(found.graph.body, found.applications, strict=True):
        if isinstance(s, Apply):
            operands = [read(o) for o in s.operands]
            if application.graph is not None:
                callee = application.graph.name.text
                results = _run_graph(program, callee, operands, tensors, codes, symbols)
            elif application.op.traits.host:
                results = _run_control(
                    program, application, operands, tensors, symbols, len(s.results)
                )
            elif application.op.traits.reinterprets:
                results = operands[:1]
            else:
                made = symbols.op(application.op.name, application.attrs, operands)
                results = [symbols.of(made, k) for k in range(len(s.results))]
            names |= zip((b.name.text for b in s.results), results, strict=True)
        elif isinstance(s, Assert):
            attrs = {"code": codes.setdefault(id(s), len(codes) + 1)}
            made = symbols.op("assert", attrs, [read(s.condition), tensors[""]])
            tensors[""] = symbols.of(made, 0)
        elif isinstance(s, Update):
            updates.append((s.target.text, read(s.value)))
        elif isinstance(s, Return):
            returned = [read(n) for n in s.values]
    for target, value in updates:
        tensors[target] = symbols.of(symbols.op("update", {}, [value, tensors[""]]), 0)
    return returned


def _run_control(program, application, operands, tensors, symbols, count) -> list[int]:
    """Control flow as a function of all that the graphs which it may call can see."""
    from opstep.runtime.ir.effects import called_graphs, effects_of

    effects = effects_of(called_graphs(application.attrs), program)
    status = [tensors[""]] if effects.updates or effects.asserts else []
    seen = [*operands, *(tensors[t] for t in effects.touches), *status]
    made = symbols.op(application.op.name, application.attrs, seen)
    for k, t in enumerate(effects.updates + (("",) if effects.asserts else ())):
        tensors[t] = symbols.of(made, count + k)
    return [symbols.of(made, k) for k in range(count)]


class Simulator:
    """One run of a plan. Ops read when they begin and write when they end, as if in parallel."""

    def __init__(self, plan: Plan, symbols: Symbols, seed: int):
        self.plan = plan
        self.symbols = symbols
        self.random = Random(seed)
        self.arena = [symbols.of("garbage", k) for k in range(plan.arena)]
        self.memory: list[tuple[list[int], int]] = []
        self.queues: dict[int, deque[Callable]] = {s: deque() for s in range(-1, plan.streams)}
        self.events: set = set()
        self.eager = self.random.choice((1, 1, 3))  # how far streams come while the host issues
        self.favoured = list(self.queues)

    def run(self) -> dict[str, int]:
        """Outputs by number, and named tensors by name, as the caller finds them."""
        plan, caller = self.plan, self.queues[-1]
        for k, b in enumerate(plan.buffers):
            own = [self.symbols.of("garbage", "own", k)] * b.nbytes
            self.memory.append((own, 0) if b.offset < 0 else (self.arena, b.offset))
        caller += [self._set_up, lambda: self.events.add("start")]
        for s in plan.start:
            self.queues[s].append(lambda: "start" in self.events)
        for i in plan.instructions:
            self._issue(i)
            for _ in range(self.random.randrange(self.eager)):
                self._advance()
        for s in plan.finish:
            self.queues[s].append(lambda s=s: self.events.add(("finish", s)))
            caller.append(lambda s=s: ("finish", s) in self.events)
        found: dict[str, int] = {}
        caller.append(lambda: self._collect(found))
        while self._advance():
            pass
        return found

    def _advance(self, stream: int | None = None) -> bool:
        """One step of this stream if it can, else of the most favoured one; False at the end.

        Favours last for a while: a race shows only where one stream is far ahead of another.
        """
        if self.random.random() < 0.05:
            self.random.shuffle(self.favoured)
        order = [s for s in self.favoured if self.queues[s]]
        for s in order if stream is None else [stream, *order]:
            if self.queues[s] and self.queues[s][0]() is not False:
                self.queues[s].popleft()
                return True
        if order:
            raise AssertionError(f"streams {order} wait for each other")
        return False

    def _issue(self, i) -> None:
        queue = self.queues[i.stream]
        match i:
            case Run(step) | Call(step):
                queue.extend(self._op(self.plan.steps[step]))
            case Record(event):
                queue.append(lambda: self.events.add(event))
            case Wait(event):
                queue.append(lambda: event in self.events)
            case Sync(stream):
                while self.queues[stream]:
                    self._advance(stream)
            case Fill(buffer):
                queue.append(lambda: self._write(buffer, self.symbols.of("fill")))

    def _op(self, step) -> list[Callable]:
        values, symbols = self.plan.values, self.symbols
        reads = [v for v in (*step.operands, *step.touched) if v is not None]
        made: list[int] = []

        def begin():
            if not step.op.traits.reinterprets:
                operands = [self._read(values[v].buffer) for v in reads]
                if step.members:
                    made.extend(self._fused(step.attrs["body"], operands))
                    return
                copies = step.op is snapshot
                made.append(
                    operands[0] if copies else symbols.op(step.op.name, step.attrs, operands)
                )

        def end():
            if step.workspace >= 0:
                self._write(step.workspace, symbols.of("working memory"))
            for k, v in enumerate((*step.results, *step.changed)):
                if step.members:
                    self._write(values[v].buffer, made[k])
                elif not step.op.traits.reinterprets:
                    self._write(values[v].buffer, self._result(step, made[0], k))

        return [begin, end]

    def _fused(self, body, operands: list[int]) -> list[int]:
        """The results of ops that are joined."""
        symbols, registers = self.symbols, list(operands)
        for member in body.members:
            given = [registers[r] for r in member.operands]
            registers.append(symbols.of(symbols.op(member.op.name, dict(member.attrs), given), 0))
        found = []
        for r, updates in zip(body.results, body.updates, strict=True):
            guarded = [registers[r], operands[body.status]]
            made = symbols.of(symbols.op("update", {}, guarded), 0) if updates else registers[r]
            found.append(made)
        return found

    def _result(self, step, made: int, k: int) -> int:
        return made if step.op is snapshot else self.symbols.of(made, k)

    def _read(self, buffer: int) -> int:
        memory, offset = self.memory[buffer]
        found = set(memory[offset : offset + self.plan.buffers[buffer].nbytes])
        return found.pop() if len(found) == 1 else self.symbols.of("mixed", tuple(sorted(found)))

    def _write(self, buffer: int, symbol: int) -> None:
        memory, offset = self.memory[buffer]
        count = self.plan.buffers[buffer].nbytes
        memory[offset : offset + count] = [symbol] * count

    def _set_up(self) -> None:
        """What the caller does before the run."""
        symbols = self.symbols
        for k, v in enumerate(self.plan.inputs):
            self._write(self.plan.values[v].buffer, symbols.of("input", k))
        for k, b in enumerate(self.plan.buffers):
            if b.kind == "param":
                self._write(k, symbols.of("param", b.name))
            elif b.kind == "status":
                self._write(k, symbols.of("status"))
            elif b.kind == "const":
                self._write(k, symbols.const(b.literal))

    def _collect(self, found: dict[str, int]) -> None:
        for k, v in enumerate(self.plan.outputs):
            found[str(k)] = self._read(self.plan.values[v].buffer)
        for k, b in enumerate(self.plan.buffers):
            if b.kind in ("param", "status"):
                found[f"tensor {b.name}"] = self._read(k)


def differences(expected: dict[str, int], found: dict[str, int]) -> list[str]:
    """The outputs and tensors that differ; a plan lacks those that it does not touch."""
    return [name for name, symbol in found.items() if expected[name] != symbol]
