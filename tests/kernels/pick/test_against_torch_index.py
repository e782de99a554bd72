"""Ops that pick, put and order elements beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402

RNG = np.random.default_rng(0)


def data(*shape: int, dtype="f4") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def places(n: int, *shape: int, dtype="i8") -> np.ndarray:
    return RNG.integers(0, n, shape).astype(dtype)


def without_repeats(n: int, count: int, *others: int) -> np.ndarray:
    """`count` of n places along axis 0, none twice in a column."""
    return np.argsort(RNG.random((n, *others)), axis=0)[:count]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis):
    x = data(4, 5, 6)
    compare(
        f"y = gather(x, index, axis={axis})",
        lambda x, index: torch.index_select(x, axis, index),
        x=x,
        index=places(x.shape[axis], 7),
    )


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_embedding(dtype):
    compare(
        "y = embedding(weight, index)",
        lambda weight, index: torch.nn.functional.embedding(index, weight),
        weight=data(20, 8),
        index=places(20, 5, 9, dtype=dtype),
    )


def test_embedding_with_padding():
    compare(
        "y = embedding(weight, index, padding_index=2)",
        lambda weight, index: torch.nn.functional.embedding(index, weight, padding_idx=2),
        weight=data(4, 3),
        index=places(4, 30),
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis):
    x = data(4, 5, 6)
    shape = [3, 4, 5]
    shape[axis] = 8
    compare(
        f"y = gather_elements(x, index, axis={axis})",
        lambda x, index: torch.gather(x, axis, index),
        x=x,
        index=places(x.shape[axis], *shape),
    )


def test_gather_nd():
    compare(
        "y = gather_nd(x, index)",
        lambda x, index: x[index[..., 0], index[..., 1]],
        x=data(4, 4, 3),
        index=places(4, 2, 7, 2),
    )


@pytest.mark.parametrize("classes", [5, 9])
def test_one_hot(classes):
    compare(
        f"y = one_hot(index, classes={classes}, dtype=i64)",
        lambda index: torch.nn.functional.one_hot(index, classes),
        index=places(5, 3, 4),
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_add(axis):
    compare(
        f"y = scatter_add(x, index, source, axis={axis})",
        lambda x, index, source: torch.scatter_add(x, axis, index, source),
        x=data(5, 5),
        index=places(5, 4, 5),
        source=data(4, 5),
    )


def test_scatter():
    compare(
        "y = scatter(x, index, source)",
        lambda x, index, source: torch.scatter(x, 0, index, source),
        x=data(9, 4),
        index=without_repeats(9, 5, 4),
        source=data(5, 4),
    )


@pytest.mark.parametrize("ours, theirs", [("mul", "prod"), ("max", "amax"), ("min", "amin")])
def test_scatter_reduce(ours, theirs):
    compare(
        f'y = scatter_reduce(x, index, source, axis=1, reduction="{ours}")',
        lambda x, index, source: torch.scatter_reduce(x, 1, index, source, theirs),
        wrt=(),
        x=data(3, 5),
        index=places(5, 3, 9),
        source=data(3, 9),
    )


@pytest.mark.parametrize("op, accumulate", [("scatter_nd", False), ("scatter_nd_add", True)])
def test_scatter_nd(op, accumulate):
    index = without_repeats(5, 3, 1)
    compare(
        f"y = {op}(x, index, source)",
        lambda x, index, source: torch.index_put(x, (index[:, 0],), source, accumulate),
        x=data(5, 4),
        index=np.concatenate((index, index)) if accumulate else index,
        source=data(6 if accumulate else 3, 4),
    )


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sort(axis, descending):
    compare(
        f"v, i = sort(x, axis={axis}, descending={str(descending).lower()})",
        lambda x: torch.sort(x, dim=axis, descending=descending, stable=True),
        x=data(40, 3, 70),
    )


@pytest.mark.parametrize("descending", [False, True])
def test_sort_with_nan_infinities_and_ties(descending):
    x = RNG.integers(-3, 3, (4, 50)).astype("f4")
    x[RNG.random(x.shape) < 0.1] = np.nan
    x[RNG.random(x.shape) < 0.1] = np.inf
    compare(
        f"v, i = sort(x, descending={str(descending).lower()})",
        lambda x: torch.sort(x, descending=descending, stable=True),
        wrt=(),
        x=x,
    )


def test_argsort():
    compare(
        "i = argsort(x, axis=0)",
        lambda x: torch.argsort(x, dim=0, stable=True),
        wrt=(),
        x=places(5, 60, 3),
    )


@pytest.mark.parametrize("k", [0, 1, 5, 200])
@pytest.mark.parametrize("largest", [True, False])
def test_top_k(k, largest):
    compare(
        f"v, i = top_k(x, k={k}, largest={str(largest).lower()})",
        lambda x: torch.topk(x, k, largest=largest),
        x=data(3, 200),
    )


def run(op: str, arrays: list, **attrs):
    from opstep.runtime.device.cpu.device import execute
    from opstep.runtime.ir.op import OPS, complete

    return execute(OPS[op], arrays, complete(OPS[op], attrs))[0]


def test_indices_below_0_count_from_the_end():
    x = data(5, 3)
    np.testing.assert_array_equal(run("gather", [x, np.array([-1, -5])]), x[[-1, -5]])


def test_an_index_that_does_not_exist_reads_nan_or_the_largest_integer():
    wrong = np.array([5, -6, 2**62, -(2**62)])
    assert np.isnan(run("gather", [data(5, 3), wrong])).all()
    assert (run("gather", [places(9, 5, 3, dtype="i2"), wrong]) == 2**15 - 1).all()
    assert np.isnan(run("gather_elements", [data(5), wrong])).all()
    assert (run("gather_elements", [data(5), wrong], missing=0) == 0).all()
    assert np.isnan(run("gather_nd", [data(5), wrong[:, None]])).all()


def test_what_goes_to_a_place_that_does_not_exist_is_dropped():
    x, wrong = data(5), np.array([5, -6, 2**62, -(2**62)])
    for op in ("scatter", "scatter_add"):
        np.testing.assert_array_equal(run(op, [x, wrong, data(4)]), x)
    for op in ("scatter_nd", "scatter_nd_add"):
        np.testing.assert_array_equal(run(op, [x, wrong[:, None], data(4)]), x)
    assert (run("gather_grad", [data(4), wrong], size=3) == 0).all()
