"""Small ops and random programs for the tests of the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.op import Op, Traits, parse_signature
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import TensorType, boolean, f32
from opstep.runtime.ir.verified import Verified
from opstep.runtime.ir.verify import verify
from opstep.runtime.plan.plan import Plan, Policy, Step
from opstep.runtime.plan.planner import make_plan

SIZE = 8  # the N of programs


def _declare(signature: str, infer: Callable, **more) -> type[Op]:
    """An op that stays out of the global table, which may hold one of the same name."""
    name, operands, attrs = parse_signature(signature)
    members = {"name": name, "operands": operands, "attrs": attrs, "infer": staticmethod(infer)}
    return type(name, (Op,), members | more)


def _same(x, *others):
    return x


def _element(*types, **attrs):
    return _same, []


def _heavy_flops(x):
    return 10**6


OPS: dict[str, type[Op]] = {
    op.name: op
    for op in (
        _declare("relu(x: N)", _same, inplace=(0,), element=_element),
        _declare("copy(x: T)", _same, element=_element),
        _declare("add(x: N, y: N)", _same, inplace=(0, 1), element=_element),
        _declare("mix(x: N, y: N)", _same, element=_element),
        _declare("put(x: N, y: N)", _same, inplace=(0,), traits=Traits(overwrites=True)),
        _declare("heavy(x: N)", _same, flops=staticmethod(_heavy_flops)),
        _declare("view(x: T)", _same, traits=Traits(reinterprets=True)),
        _declare("flat(x: T)", lambda x: x.with_shape((x.size,)), traits=Traits(reinterprets=True)),
        _declare("pair(x: N)", lambda x: (x, x), inplace=(0,)),
        _declare("scaled(x: N, *, by: float = 2.0)", lambda x, by: x, element=_element),
        _declare("total(x: N)", lambda x: TensorType(x.dtype, ())),
        _declare("positive(x: N)", lambda x: TensorType(boolean, ())),
        _declare("spread(x: N, *, shape: dims)", lambda x, shape: TensorType(x.dtype, shape)),
        _declare("work(x: N)", _same),  # the device wants working memory for it
    )
}


def prepare(step: Step, types: tuple[TensorType | None, ...]) -> tuple[str, int]:
    """A device that wants working memory for some ops."""
    return step.op.name, 3 * SIZE * 4 if step.op.name == "work" else 0


def verified(text: str, library: Sequence[str] = ()) -> Verified:
    """A program over `OPS`."""
    modules: list[Module] = [parse(t, f"library{k}.opg") for k, t in enumerate(library)]
    return verify(parse(text, "test.opg"), ops=OPS, library=modules)


def planned(text: str, policy: Policy, *shapes: tuple[int, ...], graph: str = "main") -> Plan:
    """The plan of a program's graph for f32 inputs of these shapes (vectors by default)."""
    program = verified(text)
    inputs = program.graphs[graph].graph.inputs
    types = [TensorType(f32, s) for s in shapes or [(SIZE,)] * len(inputs)]
    return make_plan(program, graph, types, policy, prepare)


# --- random programs ------------------------------------------------------------------------------

Below = Callable[[int], int]  # a number from 0 to one less than what it is given


def random_choices(seed: int) -> Below:
    return Random(seed).randrange


_UNARY = ("relu", "copy", "heavy", "scaled", "work", "view", "pair")
_BINARY = ("add", "mix", "put")


class _Writer:
    """Writes one graph after the other; later graphs call earlier ones."""

    def __init__(self, below: Below, steps: int):
        self.below = below
        self.steps = steps
        self.params = [f"p{k}" for k in range(1 + below(3))]
        self.graphs: list[tuple[str, int, int]] = []  # name, inputs, results
        self.lines = [f"param {p}: f32[{SIZE}]" for p in self.params]

    def pick(self, names: Sequence[str]) -> str:
        """Mostly a late name: then graphs are deep as well as wide."""
        late = names[-6:]
        return late[self.below(len(late))] if self.below(3) else names[self.below(len(names))]

    def graph(self, name: str, inputs: int, results: int, steps: int) -> None:
        below, n = self.below, f"f32[{SIZE}]"
        names = [f"x{k}" for k in range(inputs)]
        head = ", ".join(f"{x}: {n}" for x in names)
        self.lines.append(f"graph {name}({head}) -> {', '.join([n] * results)} {{")
        updated: set[str] = set()
        for k in range(steps):
            readable = [*names, *self.params] if below(4) == 0 else names
            kind = below(16)
            target = self.params[below(len(self.params))]
            if kind == 0 and self.graphs:
                callee, takes, gives = self.graphs[below(len(self.graphs))]
                results_of_call = [f"c{k}_{j}" for j in range(gives)]
                operands = ", ".join(self.pick(readable) for _ in range(takes))
                self.lines.append(f"  {', '.join(results_of_call)} = {callee}({operands})")
                names += results_of_call
            elif kind == 1 and target not in updated:
                updated.add(target)
                self.lines.append(f"  {target} <- {self.pick(readable)}")
            elif kind == 2:
                self.lines += [f"  t{k} = positive({self.pick(readable)})", f'  assert t{k}, "{k}"']
            elif kind == 3 and any(g[1:] == (1, 1) for g in self.graphs):
                self._branch(k, self.pick(readable))
                names.append(f"b{k}")
            elif kind < 9:
                op = _BINARY[below(len(_BINARY))]
                second = "0.5" if below(6) == 0 else self.pick(readable)
                self.lines.append(f"  v{k} = {op}({self.pick(readable)}, {second})")
                names.append(f"v{k}")
            else:
                op = _UNARY[below(len(_UNARY))]
                made = [f"v{k}", f"w{k}"] if op == "pair" else [f"v{k}"]
                self.lines.append(f"  {', '.join(made)} = {op}({self.pick(readable)})")
                names += made
        returned = [self.pick([*names, *self.params]) for _ in range(results)]
        self.lines += [f"  return {', '.join(returned)}", "}"]
        self.graphs.append((name, inputs, results))

    def _branch(self, k: int, operand: str) -> None:
        fitting = [g[0] for g in self.graphs if g[1:] == (1, 1)]
        then, other = (fitting[self.below(len(fitting))] for _ in range(2))
        self.lines.append(f"  f{k} = positive({operand})")
        self.lines.append(f"  b{k} = cond(f{k}, {operand}, then={then}, else={other})")

    def text(self) -> str:
        below = self.below
        for k in range(below(3)):
            self.graph(f"g{k}", 1 + below(2), 1 + below(2), 1 + below(5))
        self.graph("main", 1 + below(2), 1 + below(3), 1 + below(self.steps))
        return "\n".join(self.lines) + "\n"


def random_program(below: Below, steps: int = 30) -> str:
    """A program with branches, calls, updates, asserts, views, working memory and control flow."""
    return _Writer(below, steps).text()


def random_policy(below: Below) -> Policy:
    return Policy(
        streams=1 + below(8),
        alloc=("reuse", "fresh")[below(2)],
        fill=("none", "nan")[below(2)],
        sync=("none", "none", "none", "op")[below(4)],
    )
