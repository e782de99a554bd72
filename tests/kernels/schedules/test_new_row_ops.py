"""A new op on rows needs a definition, and no kernel."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
import opstep.kernels  # registers the ops
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.op import OPS

X = np.random.default_rng(0).standard_normal((3, 5, 7, 10)).astype("f4")


@pytest.fixture(autouse=True)
def l2_normalize():
    class l2_normalize(RowComposite):
        """x, divided by the lengths along some axes."""

        signature = "l2_normalize(x: F, *, axes: ints)"

        def define(g, x, *, axes):
            squares = g.sum(g.square(x), axes=axes, keepdims=True)
            return g.mul(x, g.rsqrt(squares))

    yield l2_normalize
    del OPS["l2_normalize"]


def program(axes: list[int]) -> opstep.Program:
    return opstep.loads(
        f"graph main(x: f32[3, 5, 7, 10]) -> f32[3, 5, 7, 10] {{\n"
        f"  y = l2_normalize(x, axes={axes})\n  return y\n}}\n"
    )


@pytest.mark.parametrize(
    ("axes", "ops"),
    [
        *((axes, ["l2_normalize"]) for axes in ([3], [2, 3], [1], [0, 2, 3])),
        ([0, 2], ["square", "sum", "rsqrt", "mul"]),  # whose runs are no neighbours
    ],
)
def test_what_runs(axes, ops):
    made = program(axes)
    assert [step.op.name for step in made.plan("main").steps] == ops
    (y,) = made.run("main", {"x": X}).outputs
    exact = X / np.sqrt((X.astype("f8") ** 2).sum(tuple(axes), keepdims=True))
    np.testing.assert_allclose(y, exact, rtol=1e-6)


@pytest.mark.parametrize("axes", [[3], [1], [0, 2, 3], [0, 2]])
def test_a_debugger_steps_through_with_the_same_bits(axes):
    made = program(axes)
    debugger = opstep.Debugger(made, "main", {"x": X}, stop_on_entry=True)
    debugger.start()
    names = []
    while debugger.go("in").reason == "step":
        names.append(debugger.stack()[0].name)
    assert names[0] == "l2_normalize"
    (y,) = made.run("main", {"x": X}).outputs
    assert debugger.result()["y"].tobytes() == y.tobytes()
