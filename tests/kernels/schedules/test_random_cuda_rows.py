"""Graphs of rows at random, whose numbers are exact in any order: CUDA has the CPU's bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_programs import declared, shared_rows

from opstep.runtime.device.cpu import device as cpu
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS

UNARY = ("neg", "abs", "relu")
BINARY = ("add", "sub", "maximum", "minimum")
FOLDS = ("sum", "max", "min")


def random_graph(choices: Iterator[int], g, values: list, axes: tuple[int, ...]) -> tuple:
    """A result of the first value's shape, and a number of each row."""

    def one_of(options: Sequence) -> Any:
        return options[next(choices) % len(options)]

    shape, numbers = values[0].shape, []
    inner = [v for v in values if v.shape == shape]
    for _ in range(one_of(range(2, 12))):
        kind = one_of([UNARY, BINARY, BINARY, FOLDS])
        op = getattr(g, one_of(kind))
        if kind is FOLDS:
            numbers.append(op(one_of(inner[-4:]), axes=axes, keepdims=True))
            values.append(numbers[-1])
            continue
        made = op(*(one_of(values[-6:]) for _ in range(1 + (kind is BINARY))))
        values.append(made)
        inner += [made] * (made.shape == shape)
    number = numbers[-1] if numbers else g.max(inner[-1], axes=axes, keepdims=True)
    return g.add(g.sub(g.mul(inner[-1], 0.5), number), values[0]), number


LAYOUTS = [
    *(((3, 70), (1,)), ((5, 8), (1,)), ((2, 97), (1,)), ((1, 3), (1,))),
    *(((3, 70), (0,)), ((5, 8), (0,)), ((2, 97), (0,)), ((1, 3), (0,))),
    *(((3, 4, 20), (0, 2)), ((2, 3, 2, 5), (0, 3)), ((2, 3, 2, 7), (1, 3)), ((9, 2, 1), (0, 2))),
]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 59), min_size=50, max_size=50),
    st.sampled_from(LAYOUTS),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_random_graphs(choices, layout, long, seed):
    (shape, axes), rng = layout, np.random.default_rng(seed)
    number = tuple(1 if k in axes else d for k, d in enumerate(shape))
    shapes = [shape, shape, number] + [shape[1:]] * (axes == (1,))

    def define(g, *operands):
        return random_graph(iter(choices), g, list(operands), axes)

    def infer(x, *others):
        return x, x.with_shape(number)

    operands = ", ".join(f"x{k}: F" for k in range(len(shapes)))
    with declared(f"rows_at_random({operands})", infer, define) as name:
        op: Any = OPS[name]
        arrays = [rng.integers(-3, 4, s).astype("f8") for s in shapes]
        with pytest.MonkeyPatch.context() as patch:
            if long:
                shared_rows(patch)
            own = simulator.execute(op, arrays, {})
        for a, b in zip(own, cpu.execute(op, arrays, {}), strict=True):
            np.testing.assert_array_equal(a, b)
