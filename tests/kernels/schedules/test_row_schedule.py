"""Kernels that schedules make of graphs of rows have the bits of the graphs run op by op."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from row_programs import FLOATS, declared, differing, drawn

from opstep.kernels.schedules.cpu import launching

SOFTMAX = {"softmax": 1, "log_softmax": 1, "softmax_grad": 2, "log_softmax_grad": 2}
# op -> operands of x's shape, and at most so many of a row's
NORMS = {
    "layer_norm": (1, 2),
    "layer_norm_with_statistics": (1, 2),
    "layer_norm_grad": (2, 1),
    "rms_norm": (1, 1),
    "rms_norm_grad": (2, 1),
}
EXAMPLES = settings(max_examples=12, deadline=None)
SHAPES = st.one_of(
    st.tuples(st.integers(0, 5), st.integers(1, 3000)),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 2), st.integers(500, 700), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 90), st.integers(60, 140)),
)


@pytest.mark.parametrize("name", SOFTMAX)
@EXAMPLES
@given(SHAPES, st.integers(-3, 2), st.sampled_from(FLOATS), st.integers(0, 1 << 30))
def test_softmax(name, shape, axis, dtype, seed):
    rng = np.random.default_rng(seed)
    axis = axis % len(shape)
    arrays = [drawn(rng, shape, dtype) for _ in range(SOFTMAX[name])]
    assert differing(name, arrays, {"axis": axis}) == []


@pytest.mark.parametrize("name", NORMS)
@EXAMPLES
@given(SHAPES, st.data(), st.sampled_from(FLOATS), st.integers(0, 1 << 30))
def test_norms(name, shape, data, dtype, seed):
    rng = np.random.default_rng(seed)
    row = shape[-data.draw(st.integers(1, len(shape) - 1)) :]
    own, most = NORMS[name]
    arrays = [drawn(rng, shape, dtype) for _ in range(own)]
    arrays += [drawn(rng, row, dtype) for _ in range(data.draw(st.integers(0, most)))]
    assert differing(name, arrays, {"shape": row}) == []


@pytest.mark.parametrize("name", ["group_norm", "group_norm_with_statistics"])
@EXAMPLES
@given(
    st.integers(0, 3), st.sampled_from([(4, 1), (6, 3), (8, 2)]),
    st.lists(st.integers(0, 30), max_size=2), st.integers(0, 2), st.sampled_from(FLOATS),
    st.integers(0, 1 << 30),
)  # fmt: skip
def test_group_norms(name, images, channels, plane, params, dtype, seed):
    rng = np.random.default_rng(seed)
    count, groups = channels
    arrays = [drawn(rng, (images, count, *plane), dtype)]
    arrays += [drawn(rng, (count,), dtype) for _ in range(params)]
    assert differing(name, arrays, {"groups": groups}) == []


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "nll_loss"])
@EXAMPLES
@given(
    st.sampled_from([((5, 7), 1), ((2, 3, 4), 1), ((6, 1), 1), ((1, 1), 1), ((3, 5, 9), 2),
                     ((4,), 0), ((3, 2, 70), 1), ((2, 70_001), 1), ((0, 3), 1)]),
    st.sampled_from(["none", "sum", "mean"]), st.booleans(), st.sampled_from(FLOATS),
    st.integers(0, 1 << 30),
)  # fmt: skip
@example(((6, 1), 1), "none", False, "bf16", 0)
def test_losses_of_classifiers(name, layout, reduction, weighted, dtype, seed):
    """Their graphs are several: of classes, then of positions."""
    rng = np.random.default_rng(seed)
    shape, axis = layout
    positions = (*shape[:axis], *shape[axis + 1 :])
    label = rng.integers(0, shape[axis], positions)
    for lost in (-100, shape[axis], -1)[: label.size // 3]:
        label.flat[rng.integers(0, label.size)] = lost
    x, gy = drawn(rng, shape, dtype), drawn(rng, positions if reduction == "none" else (), dtype)
    weight = [drawn(rng, shape[axis : axis + 1], dtype)] * weighted
    attrs = {"axis": axis, "reduction": reduction}
    assert differing(name, [x, label, *weight], attrs) == []
    assert differing(f"{name}_grad", [x, label, gy, *weight], attrs) == []


# so many elements that threads share them
LONG = {"softmax_grad": 2, "log_softmax": 1, "layer_norm": 1, "rms_norm_grad": 2}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", LONG)
def test_threads_share_rows(name, dtype):
    arrays = [drawn(np.random.default_rng(k), (1100, 129), dtype) for k in range(LONG[name])]
    assert differing(name, arrays, {"axis": 1} if name in SOFTMAX else {"shape": (129,)}) == []


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", LONG)
def test_threads_share_a_row(name, dtype):
    n = 140_003
    arrays = [drawn(np.random.default_rng(k), (2, n), dtype) for k in range(LONG[name])]
    assert differing(name, arrays, {"axis": 1} if name in SOFTMAX else {"shape": (n,)}) == []


def test_rows_of_other_lengths_have_the_same_kernel():
    for shape in ((2, 140_003), (3, 70_000), (2, 512_000)):
        assert differing("softmax", [drawn(np.random.default_rng(0), shape, "f32")], {}) == []


@pytest.mark.parametrize("name", ["log_softmax", "softmax_grad"])
def test_threads_share_columns(name):
    arrays = [drawn(np.random.default_rng(k), (2, 60, 2000), "f32") for k in range(LONG[name])]
    assert differing(name, arrays, {"axis": 1}) == []


UNARY = ("exp", "neg", "abs", "square", "sqrt", "log", "tanh", "reciprocal")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
FOLDS = ("sum", "mean", "max", "min")


def random_graph(draw: Any, g, values: list, axes: tuple[int, ...]) -> tuple:
    """A result of the first value's shape, and a number of each row."""
    shape, folded = values[0].shape, []
    inner = [v for v in values if v.shape == shape]
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from([UNARY, BINARY, FOLDS]))
        op = draw(st.sampled_from(kind))
        if kind is FOLDS:
            of = draw(st.sampled_from(inner))
            folded.append(getattr(g, op)(of, axes=axes, keepdims=True))
            values.append(folded[-1])
            continue
        operands = [draw(st.sampled_from(values)) for _ in range(1 + (kind is BINARY))]
        if kind is BINARY and draw(st.booleans()):
            operands[1] = draw(st.sampled_from([0.5, -3.0, 1e-5]))
        made = getattr(g, op)(*operands)
        values.append(made)
        inner += [made] * (made.shape == shape)
    number = folded[-1] if folded else g.sum(inner[-1], axes=axes, keepdims=True)
    return g.add(g.sub(inner[-1], number), values[0]), number


LAYOUTS = st.sampled_from([
    ((3, 1030), (1,)), ((2, 5, 17), (1, 2)), ((4, 3), (1,)), ((2, 600, 3), (1,)),
    ((2, 30, 70), (1,)), ((40, 9), (0,)), ((7, 1), (1,)), ((2, 3, 1), (2,)),
    ((1, 1100, 70), (1,)), ((2, 3, 1, 50), (3,)), ((0, 4), (1,)),
    ((3, 4, 600), (0, 2)), ((2, 3, 4, 5, 7), (1, 3, 4)), ((5, 1, 3, 1), (0, 2)),
])  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.data(), LAYOUTS, st.sampled_from(FLOATS), st.booleans(), st.integers(0, 1 << 30))
def test_random_graphs(data, layout, dtype, shared, seed):
    """`shared`: threads share few rows, however short."""
    rng = np.random.default_rng(seed)
    shape, axes = layout
    number = tuple(1 if k in axes else d for k, d in enumerate(shape))
    shapes = [shape, shape, number]
    if max(axes) - min(axes) >= len(axes):  # runs that lie apart
        shapes.append((1, *number[1:]))
    elif max(axes) == len(shape) - 1:  # rows of neighbours
        shapes.append(shape[min(axes) :])
        shapes.append((1, *shape[1:]))
        if len(axes) == 2:  # planes
            shapes.append((shape[1], 1))

    def define(g, *operands):
        return random_graph(data.draw, g, list(operands), axes)

    def infer(x, *others):
        return x, x.with_shape(number)

    operands = ", ".join(f"x{k}: F" for k in range(len(shapes)))
    many = mock.patch.object(launching, "MANY", -1 if shared else launching.MANY)
    with many, declared(f"rows_at_random({operands})", infer, define) as name:
        arrays = [drawn(rng, s, dtype) for s in shapes]
        assert differing(name, arrays, {}) == []
