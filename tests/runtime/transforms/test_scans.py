"""Gradients of loops over the rows of tensors: against differences in f64 and PyTorch, and linear
in the number of rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_grad_control import check

import opstep
from opstep.api.budget import memory_of
from opstep.api.devices import PLAIN
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import TensorType, f32, i32
from opstep.runtime.plan.plan import MODES

SCAN = """
param w: f64[3, 3] = normal(std=0.4)
param u: f64[3] = normal(std=0.4)

graph more(t: i32[], h: f64[3], y: f64[T, 3], x: f64[T, 3]) -> bool[] {
  length = extent(of=[T], dtype=i32)
  left = less(t, length)
  return left
}

graph turn(
    t: i32[], h: f64[3], y: f64[T, 3], x: f64[T, 3],
) -> i32[], f64[3], f64[T, 3], f64[T, 3] {
  READ
  a = linear(h, w)
  b = mul(now, u)
  s = add(a, b)
  new = tanh(s)
  CHECK
  place = reshape(WHERE, shape=[1])
  rows = scatter_nd(y, place, new)
  next = add(t, 1)
  return next, new, rows, x
}

graph loss(x: f64[T, 3], y: f64[T, 3]) -> f64[] {
  h = full(shape=[3], value=0.5, dtype=f64)
  t, last, rows, same = while(BEGIN, h, y, x, test=more, body=turn)
  AGAIN
  squares = square(rows)
  l1 = sum(squares)
  l2 = sum(last)
  squares2 = mul(same, x)
  l3 = sum(squares2)
  l12 = add(l1, l2)
  l = add(l12, l3)
  return l
}
"""
PLAIN_SCAN = {
    "READ": "now = gather(x, t)", "CHECK": "fine = isfinite(h)", "WHERE": "t", "BEGIN": "0",
    "AGAIN": "unread = neg(last)",
}  # fmt: skip
TWICE = "t2, last2, rows2, same2 = while(1, last, rows, x, test=more, body=turn)\n  r2 = neg(rows2)"
KINDS = {
    "rows": {},
    "begins later": {"BEGIN": "2"},
    "one row is written again and again": {"WHERE": "half"}
    | {"CHECK": "half = floor_div(t, 2)\n  fine = isfinite(h)"},
    "reads two rows": {
        "READ": "one = gather(x, t)\n  back = neg(t)\n  two = gather(x, back)\n"
        "  now = add(one, two)"
    },
    "rows past the end": {"WHERE": "past", "CHECK": "past = add(t, 2)"},
    "an assert": {"CHECK": "small = less(new, 9.0)\n  all = all(small)\n  assert all"},
    "two loops": {"AGAIN": TWICE},
    "reads what it writes": {"READ": "a1 = gather(y, t)\n  a2 = gather(x, t)\n  now = mul(a1, a2)"},
    "several rows at once": {
        "READ": "i = stack(t, t)\n  both = gather(x, i)\n  now = sum(both, axes=[0])"
    },
}


def text(**changes: str) -> str:
    found = SCAN
    for name, line in (PLAIN_SCAN | changes).items():
        found = found.replace(name, line)
    return found


@pytest.mark.parametrize("turns", [5, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives(kind, turns):
    rng = np.random.default_rng(0)
    inputs = {n: rng.uniform(-1, 1, (turns, 3)) for n in "xy"}
    program = check(text(**KINDS[kind]), inputs, ["x", "y", "w", "u"])
    written = print_module(program.module)
    assert ("turn_kept" in written) == (kind != "reads what it writes")


def test_modes_and_streams_give_the_same_bits():
    rng = np.random.default_rng(0)
    inputs = {n: rng.uniform(-1, 1, (6, 3)) for n in "xy"}
    program = opstep.loads(text()).with_grad("loss", ["x", "y", "w", "u"])
    runs = [{}, {"mode": "debug"}, {"streams": 1}, {"streams": 3}, {"threads": 2}]
    found = [[a.tobytes() for a in program.run("loss_grad", inputs, **r).outputs] for r in runs]
    assert all(f == found[0] for f in found)


def test_a_count_that_is_not_known_goes_the_other_way():
    """A loop that may stop earlier than its rows is bounded all the same; one by a value is not."""
    by_value = text().replace("left = less(t, length)", "s = sum(h)\n  left = less(s, 2.0)")
    program = opstep.loads(by_value).with_grad("loss", ["x"])
    assert "turn_kept" not in print_module(program.module)


def test_memory_is_linear_and_a_turn_takes_none_of_it():
    program = opstep.loads(text().replace("f64", "f32")).with_grad("loss", ["x", "y", "w", "u"])
    totals, turns = [], []
    for rows in (50, 100, 200):
        t = TensorType(f32, (rows, 3))
        totals.append(memory_of(program, "loss_grad", (t, t)).total)
        graph = program.graph("turn_turned_back")
        types = program.input_types(graph, {"T": rows})
        assert types[0] == TensorType(i32, ())
        plan = program._plan("cpu", PLAIN, "turn_turned_back", types, MODES["async"], carried=True)
        turns.append((plan.arena, len(plan.steps)))
    assert totals[2] - totals[1] <= 2.1 * (totals[1] - totals[0])
    assert turns[0] == turns[1] == turns[2]


def test_an_lstm_as_pytorch_has_it():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.l = torch.nn.LSTM(4, 8)

        def forward(self, x):
            y, _ = self.l(x)
            return y.square().mean()

    torch.manual_seed(0)
    net, x = Net().double(), torch.randn(30, 2, 4, dtype=torch.float64)
    program = opstep.from_torch(net, (x,)).with_grad("main", ["*"], name="back")
    found = program.run("back", {"x": x.numpy()}).outputs[1:]
    net(x).backward()
    for array, (name, p) in zip(found, net.named_parameters(), strict=True):
        np.testing.assert_allclose(array, p.grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)
