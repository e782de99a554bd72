"""Elements that an index brings to one place, on CUDA: runs that lie in one piece of the sorted
list, in two, and in many, over several levels; and columns that a warp takes.
"""

from __future__ import annotations

import numpy as np
import pytest
from rowwise import check, numbers

from opstep.kernels.pick import cuda_picking, cuda_putting, cuda_segments


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    """Pieces of three entries, so that a list of 90 takes four levels; nothing is added without
    sorting.
    """
    monkeypatch.setattr(cuda_segments, "PIECES", (3, 3))
    monkeypatch.setattr(cuda_putting, "SHORT", 0)


@pytest.fixture(params=["sorted", "held", "far"])
def way(request, monkeypatch):
    """Columns that have indices of their own are sorted, or a warp takes each, which holds it in
    shared memory or does not.
    """
    if request.param == "sorted":
        monkeypatch.setattr(cuda_putting, "SORTED", (-1, 1 << 40))
    if request.param == "far":
        monkeypatch.setattr(cuda_putting, "ROOM", (0, 0))


def indices(n: int, extent: int, few: int, seed: int = 0) -> np.ndarray:
    """Of `extent`, some of them out of range; most are one of `few`."""
    rng = np.random.default_rng([seed, n, extent, few])
    often = rng.choice(rng.integers(-extent, extent, few), n)
    return np.where(rng.random(n) < 0.6, often, rng.integers(-extent - 2, extent + 2, n))


FEW = (1, 2, 20)


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "i64"])
def test_added_rows(dtype, few):
    x, source = numbers(dtype, 7, 5), numbers(dtype, 90, 5, seed=1)
    index = indices(90, 7, few)
    check("index_put_add", x, source, index)
    check("index_put_add", x.T.copy(), source.T.copy(), index, axes=(1,))
    check("scatter_nd_add", x, index[:, None], source)
    if dtype in ("f32", "bf16"):
        check("gather_grad", source, index, size=7)
        check("gather_grad", source.T.copy(), index, size=7, axis=1, ignored=int(index[3]) % 7)


@pytest.mark.parametrize("few", FEW)
def test_the_last_of_several_rows_stays(few):
    x, source, index = numbers("f32", 7, 5), numbers("f32", 90, 5, seed=1), indices(90, 7, few)
    check("index_put", x, source, index)
    check("scatter_nd", x, index[:, None], source)


def test_nothing_of_a_place_that_does_not_exist():
    x, source = numbers("f32", 7, 5), numbers("f32", 90, 5, seed=1)
    for index in (np.full(90, 7), np.full(90, -8)):
        check("index_put_add", x, source, index)
    check("gather_grad", source, np.zeros(90, np.int64), size=7, ignored=0)


@pytest.mark.parametrize("name", ["index_put", "index_put_add"])
def test_axes_apart_and_sources_that_broadcast(name):
    x = numbers("f32", 3, 4, 5, 2)
    i, j = indices(30, 3, 2).reshape(6, 5), indices(5, 5, 2, seed=1)
    for source in (numbers("f32", 6, 5, 4, 2), numbers("f32", 5, 1, 2), numbers("f32")):
        check(name, x, source, i, j, axes=(0, 2))
    y = numbers("f32", 4, 6, 5, 2)
    check(name, x.swapaxes(0, 1).copy(), y, i, j, axes=(1, 2))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_elements(dtype, few):
    x, source = numbers(dtype, 5, 3), numbers(dtype, 30, 3, seed=1)
    index = indices(90, 5, few).reshape(30, 3)
    check("scatter", x, index, source, axis=0)
    across = [np.ascontiguousarray(a.T) for a in (x, index, source)]
    check("scatter_add", *across, axis=1)
    for reduction in ("mean", "mul", "max", "min"):
        for itself in (False, True):
            check(
                *("scatter_reduce", x, index, source),
                axis=0, reduction=reduction, include_self=itself,
            )  # fmt: skip
    if dtype == "f32":
        check("gather_elements_grad", source, index, shape=(5, 3), axis=0)


@pytest.mark.parametrize("few", FEW)
@pytest.mark.parametrize("n", [90, 96, 300])
@pytest.mark.parametrize("dtype", ["f32", "i8"])
def test_vectors_of_elements(dtype, n, few, monkeypatch):
    """Keys and elements in order are read four at a time."""
    monkeypatch.setattr(cuda_segments, "PIECES", (8, 16))
    x, source = numbers(dtype, 7), numbers(dtype, n, seed=1)
    check("scatter_add", x, indices(n, 7, few), source, axis=0)
    check("index_put", x, source, indices(n, 7, few))


@pytest.mark.usefixtures("way")
def test_extremes_keep_nan():
    x, source = numbers("f32", 5, 3), numbers("f32", 30, 3, seed=1)
    source[::7] = np.nan
    index = indices(90, 5, 2).reshape(30, 3)
    for reduction in ("max", "min", "mul", "add"):
        check("scatter_reduce", x, index, source, axis=0, reduction=reduction)


def test_some_entries_at_a_time(monkeypatch):
    monkeypatch.setattr(cuda_putting, "MOST", 40)
    x, source, index = numbers("f32", 7, 5), numbers("f32", 90, 5, seed=1), indices(90, 7, 2)
    check("index_put", x, source, index)
    check("index_put_add", x, source, index)
    check("scatter_add", x, np.repeat(index[:, None], 5, 1), source, axis=0)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode):
    weight, index = numbers("f32", 9, 5), indices(90, 9, 3)
    for starts in ([0], [0, 0, 3, 3, 50, 51, 90], [0, 1, 2, 3, 4, 5, 89]):
        offsets = np.array(starts)
        scale = numbers("f32", 90) if mode == "sum" else None
        check("embedding_bag", weight, index, offsets, scale, mode=mode)
        check("embedding_bag", weight, index, offsets, None, mode=mode, padding_index=2)
        if len(starts) > 1:
            check(
                *("embedding_bag", weight, index, offsets, None),
                mode=mode,
                include_last_offset=True,
            )


@pytest.mark.parametrize("wide", [1, 64])
def test_picked_elements(wide, monkeypatch):
    """Also by an index that is read once for many."""
    monkeypatch.setattr(cuda_picking, "WIDE", wide)
    x = numbers("f32", 3, 4, 5, 2)
    i, j = indices(30, 3, 2).reshape(6, 5), indices(5, 5, 2, seed=1)
    for axes in ((0,), (1,), (3,)):
        check("index", x, i, axes=axes)
        check("index", x, i, axes=axes, missing=7.0)
    for axes in ((0, 1), (2, 1), (0, 2), (3, 0)):
        check("index", x, i, j, axes=axes)
    check("index", x, i, j, indices(6, 4, 2).reshape(6, 1), axes=(0, 2, 1), missing=1.0)
    for dtype in ("bf16", "i8", "f64"):
        check("gather", numbers(dtype, 19, 7), indices(33, 7, 5), axis=1)
        check("gather", numbers(dtype, 9, 7, 3), indices(33, 7, 5), axis=1)
    check("gather_elements", numbers("f32", 6, 7), indices(45, 7, 5).reshape(5, 9), axis=1)
    check("gather_nd", x, np.stack((indices(17, 3, 5), indices(17, 4, 5)), -1))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_along_any_axis_of_a_part(axis):
    """The index reaches a part of x only."""
    x = numbers("f32", 6, 5, 4)
    shape = [4, 3, 2]
    shape[axis] = 23
    index = indices(int(np.prod(shape)), x.shape[axis], 2).reshape(shape)
    check("scatter_add", x, index, numbers("f32", *shape), axis=axis)
    check("scatter", x, index, numbers("f32", *shape), axis=axis)
    for dtype in ("bf16", "i8", "f64"):
        x, source = numbers(dtype, 6, 5, 4), numbers(dtype, *shape)
        check("scatter_reduce", x, index, source, axis=axis, reduction="mean")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("few", [1, 40])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_long_columns(dtype, few):
    """Several tiles, blocks that are not full, and columns that are neighbours in memory."""
    x, source, index = numbers(dtype, 20, 11), numbers(dtype, 300, 10), indices(3000, 20, few)
    check("scatter_add", x, index.reshape(300, 10), source, axis=0)
    check("scatter", x.T.copy(), index.reshape(10, 300), source.T.copy(), axis=1)
    if dtype != "i8":
        gy = numbers(dtype, 300, 11)
        index = indices(3300, 20, few).reshape(300, 11)
        check("gather_elements_grad", gy, index, shape=(20, 11), axis=0)
        check("gather_elements_grad", gy.T.copy(), index.T.copy(), shape=(11, 20), axis=1)


@pytest.mark.parametrize("extent", [70, 100])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_columns_that_are_cut(dtype, extent, monkeypatch):
    """In two and in four, each of which a block holds."""
    monkeypatch.setattr(cuda_putting, "ROOM", (0, 4 * 36 * 4))
    x, source = numbers(dtype, extent, 11), numbers(dtype, 300, 10)
    index = indices(3000, extent, 40).reshape(300, 10)
    check("scatter_add", x, index, source, axis=0)
    check("scatter", x, index, source, axis=0)
    gy, index = numbers(dtype, 300, 11), indices(3300, extent, 40).reshape(300, 11)
    check("gather_elements_grad", gy, index, shape=(extent, 11), axis=0)


@pytest.mark.parametrize("lead", [(), (1,), (3,)])
def test_an_index_that_names_no_axis(lead):
    x, source, index = numbers("f32", 4, 3), numbers("f32", *lead, 4, 3), np.zeros((*lead, 0), int)
    check("scatter_nd", x, index, source)
    check("scatter_nd_add", x, index, source)
    check("gather_nd", x, index)
