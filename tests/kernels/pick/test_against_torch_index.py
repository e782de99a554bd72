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


def spread(rank: int, axes: list[int], given: tuple) -> list:
    """Indices as ATen takes them, with None for the axes that none is for."""
    return [given[axes.index(k)] if k in axes else None for k in range(rank)]


@pytest.mark.parametrize("shapes", [((7,), (7,)), ((2, 3), (3,)), ((4, 1), (5,)), ((), (6,))])
@pytest.mark.parametrize("axes", [[0, 1], [1, 2], [2, 1], [0, 2], [3, 1]])
def test_advanced_index(axes, shapes):
    i, j = (RNG.integers(-4, 4, s) for s in shapes)
    compare(
        f"y = index(x, i, j, axes={axes})",
        lambda x, i, j: torch.ops.aten.index(x, spread(4, axes, (i, j))),
        x=data(4, 4, 4, 4),
        i=i,
        j=j,
    )


WRITES = [
    ([0, 1], ()), ([2, 0], (1,)), ([1, 2], (2, 1)), ([0, 1], (2, 5, 5)), ([2, 0], (2, 5, 5)),
    ([1, 2], (5, 2, 5)),
]  # fmt: skip


@pytest.mark.parametrize("axes, shape", WRITES)
@pytest.mark.parametrize("op", ["index_put", "index_put_add"])
def test_index_put(op, axes, shape):
    i, j = RNG.permutation(5)[:2, None], RNG.permutation(5)
    if op == "index_put_add":
        i[1] = i[0] - 5  # the same

    def peer(x, source, i, j):
        accumulate = op == "index_put_add"
        return torch.ops.aten.index_put(x, spread(3, axes, (i, j)), source, accumulate)

    compare(
        f"y = {op}(x, source, i, j, axes={axes})",
        peer,
        x=data(5, 5, 5),
        source=data(*shape),
        i=i,
        j=j,
    )


def test_index_put_of_rows():
    """What torch.index_add, index_copy and index_fill do."""
    i = np.array([1, 4, 0])
    given = {"x": data(3, 5, 2), "source": data(3, 3, 2), "index": i}
    for op in ("index_add", "index_copy"):
        ours = "index_put_add" if op == "index_add" else "index_put"
        peer = getattr(torch, op)
        compare(
            f"y = {ours}(x, source, index, axes=[1])",
            lambda x, source, index, peer=peer: peer(x, 1, index, source),
            **given,
        )
    compare(
        "y = index_put(x, 2.5, index, axes=[1])",
        lambda x, index: torch.index_fill(x, 1, index, 2.5),
        x=data(3, 5, 2),
        index=i,
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


REDUCTIONS = {"add": "sum", "mean": "mean", "mul": "prod", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "i8"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_reduce(reduction, dtype, include_self):
    attrs = f'reduction="{reduction}", include_self={str(include_self).lower()}'
    theirs = REDUCTIONS[reduction]
    compare(
        f"y = scatter_reduce(x, index, source, axis=1, {attrs})",
        lambda x, index, source: torch.scatter_reduce(
            x, 1, index, source, theirs, include_self=include_self
        ),
        x=data(3, 9) if dtype == "f4" else places(19, 3, 9) - 9,
        index=places(7, 3, 9),
        source=data(3, 9) if dtype == "f4" else places(19, 3, 9) - 9,
    )


def test_gradient_of_a_product_with_zeros():
    source = np.array([0, 2, 0, 0, 3, 0.5], "f4")
    compare(
        'y = scatter_reduce(x, index, source, reduction="mul")',
        lambda x, index, source: torch.scatter_reduce(x, 0, index, source, "prod"),
        x=np.array([2, 0, 3], "f4"),
        index=np.array([0, 0, 1, 1, 2, 2]),
        source=source,
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


@pytest.mark.parametrize("shape", [(30,), (4, 9), (2, 1200)])
def test_masked_scatter(shape):
    compare(
        "y = masked_scatter(x, mask, source)",
        lambda x, mask, source: torch.masked_scatter(x, mask, source),
        x=data(*shape),
        mask=RNG.random(shape) < 0.5,
        source=data(*shape),
    )


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("shape", [(9,), (3, 9)])
def test_searchsorted(shape, right):
    row = np.sort(RNG.integers(0, 6, shape).astype("f4"))
    values = RNG.integers(-1, 7, (3, 20)).astype("f4")
    values[0, :4] = [np.nan, np.inf, -np.inf, -0.0]
    compare(
        f"y = searchsorted(row, values, right={str(right).lower()})",
        lambda row, values: torch.searchsorted(row, values, right=right),
        wrt=(),
        row=row,
        values=values,
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bag(mode, padding):
    extra = "" if padding is None else f", padding_index={padding}"
    compare(
        f'y = embedding_bag(weight, index, offsets, mode="{mode}"{extra})',
        lambda weight, index, offsets: torch.nn.functional.embedding_bag(
            index, weight, offsets, mode=mode, padding_idx=padding
        ),
        weight=data(9, 4),
        index=np.concatenate([np.argsort(RNG.random(9)) for _ in range(3)]),
        offsets=np.array([0, 3, 3, 9, 18]),
    )


def test_embedding_bag_with_scales_and_the_last_offset():
    compare(
        'y = embedding_bag(weight, index, offsets, scale, mode="sum", include_last_offset=true)',
        lambda weight, index, offsets, scale: torch.nn.functional.embedding_bag(
            index,
            weight,
            offsets,
            mode="sum",
            per_sample_weights=scale,
            include_last_offset=True,
        ),
        weight=data(9, 4),
        index=places(9, 20),
        offsets=np.array([0, 3, 3, 9, 20]),
        scale=data(20),
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
    assert np.isnan(run("index", [data(5, 5), np.zeros(4, "i8"), wrong])).all()
    assert (run("index", [data(5, 5), wrong, np.zeros(1, "i8")], missing=3) == 3).all()


def test_what_goes_to_a_place_that_does_not_exist_is_dropped():
    x, wrong = data(5), np.array([5, -6, 2**62, -(2**62)])
    for op in ("scatter", "scatter_add"):
        np.testing.assert_array_equal(run(op, [x, wrong, data(4)]), x)
    for op in ("scatter_nd", "scatter_nd_add"):
        np.testing.assert_array_equal(run(op, [x, wrong[:, None], data(4)]), x)
    for op in ("index_put", "index_put_add"):
        np.testing.assert_array_equal(run(op, [x, data(4), wrong]), x)
    assert (run("gather_grad", [data(4), wrong], size=3) == 0).all()
