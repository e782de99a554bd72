"""Collectives of several ranks: what each does with the others against the meaning of all, and
gradients against differences of the sum of all ranks' losses.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

import numpy as np
import oracle
import pytest

import opstep
import opstep.kernels
from opstep.runtime.ir.graph import Apply, Name, Return
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.op import OPS, complete, resolve
from opstep.runtime.ir.printer import print_value
from opstep.runtime.ir.types import TensorType, bf16, f16, f32, f64, i16, u8

CASES = [
    *[("all_reduce", {"reduction": r}) for r in ("sum", "mean", "max", "min", "prod")],
    ("reduce_scatter", {"axis": 1, "reduction": "sum"}),
    ("reduce_scatter", {"axis": 0, "reduction": "mean"}),
    ("all_gather", {"axis": 0}),
    ("all_gather", {"axis": 1}),
    ("all_to_all", {"split": 0, "concat": 1}),
    ("all_to_all", {"split": 1, "concat": 1}),
    ("broadcast_from", {"root": 2}),
    ("barrier", {}),
]
TYPES = (f32, f64, f16, bf16, i16, u8)


class Wires:
    """One rank's door to others in threads of this process."""

    def __init__(self, wires: dict[tuple[int, int], SimpleQueue], index: int, size: int):
        self.wires, self.index, self.size = wires, index, size

    def exchange(self, parts):
        for k, part in enumerate(parts):
            self.wires[self.index, k].put(np.array(part))
        return [self.wires[k, self.index].get(timeout=60) for k in range(self.size)]

    def gather(self, array, sizes=()):
        return self.exchange([array] * self.size)

    def broadcast(self, array, root):
        return self.exchange([array] * self.size)[root]

    def barrier(self):
        self.exchange([np.zeros(1)] * self.size)

    def send(self, array, to):
        self.wires[self.index, to].put(np.array(array))

    def recv(self, like, source):
        return self.wires[source, self.index].get(timeout=60)


def joined(op, xs, shape, **attrs):
    """What each of the ranks has in the end, each in a thread."""
    count = len(xs)
    wires = {(a, b): SimpleQueue() for a in range(count) for b in range(count)}
    results = [np.zeros(shape, xs[0].dtype) for _ in xs]
    doors = [Wires(wires, k, count) for k in range(count)]
    work = [
        Thread(target=op.joined, args=(doors[k], xs[k], results[k]), kwargs=attrs)
        for k in range(count)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(timeout=60)
    return results


def group_of(size: int) -> Group:
    mesh = Mesh((("data", size),), True)
    return Group(mesh, mesh.names)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name, attrs", CASES, ids=str)
def test_what_a_rank_does_is_what_all_mean(name, attrs, dtype):
    op, size = OPS[name], 3
    if attrs.get("reduction") == "mean" and dtype.is_integer:
        pytest.skip("means are floats")
    rng = np.random.default_rng(7)
    xs = [rng.uniform(1, 9, (6, 3)).astype(dtype.numpy) for _ in range(size)]
    attrs = complete(op, attrs) | {"over": group_of(size)}
    (t,) = resolve(op, [TensorType(dtype, (6, 3))], attrs).results
    wanted = op.together(xs, **attrs)
    for got, want in zip(joined(op, xs, t.shape, **attrs), wanted, strict=True):
        assert got.tobytes() == np.ascontiguousarray(want).tobytes()  # in the order of the ranks


def test_a_sum_is_that_of_its_terms_in_the_order_of_the_ranks():
    xs = [np.array([v], np.float32) for v in (1e8, -1e8, 1.0, 1e-3)]
    attrs = {"over": group_of(4), "reduction": "sum"}
    for got in joined(OPS["all_reduce"], xs, (1,), **attrs):
        assert got[0] == np.float32(np.float32(1.0) + np.float32(1e-3))


def test_what_one_sends_another_receives():
    x, y = np.arange(6.0), np.zeros(6)
    wires = {(a, b): SimpleQueue() for a in range(2) for b in range(2)}
    over = group_of(2)
    OPS["send"].joined(Wires(wires, 0, 2), x, y.copy(), to=1, over=over)
    OPS["recv"].joined(Wires(wires, 1, 2), np.zeros(6), y, source=0, over=over)
    assert y.tolist() == x.tolist()


# --- gradients ------------------------------------------------------------------------------------


def in_lockstep(verified, graph: str, inputs: list[dict]) -> list[list[np.ndarray]]:
    """The results of a straight graph on all ranks of its mesh, by the oracles of its ops."""
    found, mesh = verified.graphs[graph], verified.mesh
    values = [dict(given) for given in inputs]
    for statement, application in zip(found.graph.body, found.applications, strict=True):
        if isinstance(statement, Return):
            return [[v[name.text] for name in statement.values] for v in values]
        assert isinstance(statement, Apply)
        op = application.op
        given = [
            [v[o.text] if isinstance(o, Name) else o.value for o in statement.operands]
            for v in values
        ]
        if op.traits.collective:
            results: list = [None] * mesh.ranks
            for members in groups(application.attrs["over"]):
                made = op.together([given[r][0] for r in members], **application.attrs)
                for r, one in zip(members, made, strict=True):
                    results[r] = [one]
        elif op.traits.by_rank:
            over = application.attrs["over"]
            results = [[np.array(over.index(r), np.int32)] for r in range(mesh.ranks)]
        else:
            results = [oracle.apply(application, g) for g in given]
        for v, made in zip(values, results, strict=True):
            for binding, one in zip(statement.results, made, strict=True):
                v[binding.name.text] = one
    raise AssertionError("the graph has no return")


def groups(over: Group) -> set[tuple[int, ...]]:
    return {over.members(rank) for rank in range(over.mesh.ranks)}


@pytest.mark.parametrize("over", ["data", "model", "[data, model]", "none"])
@pytest.mark.parametrize("name, attrs", CASES, ids=str)
def test_gradients_are_those_of_the_sum_of_all_losses(name, attrs, over):
    written = [f"{k}={print_value(v)}" for k, v in attrs.items() if k != "root"]
    given = ", ".join(["x", *written, f"over={over}"])
    text = f"""mesh data: 3, model: 2

graph loss(x: f64[6, 6], w: f64[]) -> f64[] {{
  y = {name}({given})
  r = rank()
  weight = add(r, 1.5)
  curved = mul(y, y)
  bent = mul(curved, weight)
  total = sum(bent)
  return total
}}
"""
    program = opstep.loads(text, mesh={}).with_grad("loss", ["x"])
    rng = np.random.default_rng(3)
    inputs = [{"x": rng.normal(size=(6, 6)), "w": np.array(1.0)} for _ in range(6)]

    def total(moved) -> float:
        return sum(float(r[0]) for r in in_lockstep(program.verified, "loss", moved))

    found = [r[1] for r in in_lockstep(program.verified, "loss_grad", inputs)]
    for _ in range(3):
        direction = [rng.normal(size=(6, 6)) for _ in inputs]
        near = [
            total([i | {"x": i["x"] + h * d} for i, d in zip(inputs, direction, strict=True)])
            for h in (1e-5, -1e-5)
        ]
        slope = (near[0] - near[1]) / 2e-5
        along = sum(float(np.sum(g * d)) for g, d in zip(found, direction, strict=True))
        assert abs(slope - along) <= 1e-5 * (1 + abs(slope))


def test_no_gradient_is_taken_through_what_another_rank_sent():
    text = """graph loss(x: f32[4]) -> f32[] {
  y = recv(x, source=0)
  total = sum(y)
  return total
}
"""
    with pytest.raises(opstep.OpstepError, match="recv"):
        opstep.loads(text).with_grad("loss", ["x"])
