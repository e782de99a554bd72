"""Matrix products on CUDA, thread by thread: every kind of tile, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.kernels.matmul import cuda_gemm
from opstep.kernels.matmul.cuda_gemm_tiles import HALVES, PLAIN, WARPGROUPS, of_halves
from opstep.kernels.matmul.cuda_tile import Tile, WarpTile
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

TOLERANCE = {"f64": 1e-14, "f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}  # of the largest element
TRANSPOSED = [(False, False), (False, True), (True, False), (True, True)]


def check(name: str, operands: list[np.ndarray], **attrs) -> None:
    op = OPS[name]
    given = complete(op, attrs)
    (found,) = simulator.execute(op, operands, given)
    exact = np.int64 if operands[0].dtype.kind in "iu" else np.float64
    wanted = np.asarray(op.oracle(*(a.astype(exact) for a in operands), **given))
    assert found.shape == wanted.shape
    if exact is np.int64:
        assert np.array_equal(found, wanted.astype(found.dtype))
    else:
        dtype = next(t.name for t in DTYPES.values() if t.numpy == found.dtype)
        allowed = TOLERANCE[dtype] * max(1.0, np.abs(wanted).max(initial=0))
        assert np.abs(found.astype(np.float64) - wanted).max(initial=0) <= allowed


def random(*shape: int, dtype: str = "f32") -> np.ndarray:
    rng = np.random.default_rng(shape)
    if DTYPES[dtype].is_integer:
        return rng.integers(0, 100, shape).astype(DTYPES[dtype].numpy)
    return rng.standard_normal(shape).astype(DTYPES[dtype].numpy)


def matrices(m: int, n: int, k: int, turned: tuple[bool, bool], dtype: str) -> list[np.ndarray]:
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
    return [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), turned, strict=True)]


def product(m: int, n: int, k: int, turned=(False, False), dtype: str = "f32") -> None:
    check("matmul", matrices(m, n, k, turned, dtype), transpose_a=turned[0], transpose_b=turned[1])


def only(monkeypatch, tile: Tile | WarpTile, parts: int = 1) -> None:
    monkeypatch.setattr(cuda_gemm, "cheapest", lambda *_: (tile, parts))


@pytest.mark.parametrize("turned", TRANSPOSED)
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8"])
def test_dtypes(dtype, turned):
    product(9, 10, 11, turned, dtype)


@pytest.mark.parametrize("tile", [pace.tile for paces in PLAIN.values() for pace in paces])
@pytest.mark.parametrize("turned", TRANSPOSED)
def test_tiles(monkeypatch, tile, turned):
    only(monkeypatch, tile)
    dtype = "f64" if tile.itemsize == 8 else "f32"
    product(tile.rows + 4, 12, 20, turned, dtype)  # read and written in vectors
    product(7, tile.columns + 3, 19, turned, dtype)


HALF_TILES = {pace.tile for pace in HALVES + WARPGROUPS}


@pytest.mark.parametrize("tile", sorted(HALF_TILES))
@pytest.mark.parametrize("turned", TRANSPOSED)
def test_tensor_cores(monkeypatch, tile, turned):
    only(monkeypatch, tile)
    product(40, 72, 72, turned, "bf16")
    if turned in [(False, False), (True, True)]:  # both lie either way, in lines from anywhere
        product(tile.rows - 1, tile.columns - 3, 67, turned, "f16")


@pytest.mark.parametrize("turned", TRANSPOSED)
def test_lines_may_begin_anywhere(turned):
    product(19, 21, 75, turned, "bf16")
    product(16, 21, 72, turned, "f16")
    check("matmul", [random(3, 9, 13, dtype="f16"), random(3, 13, 5, dtype="f16")])
    check("matmul", [random(3, 9, 13, dtype="f16"), random(13, 5, dtype="f16")])
    if turned == (True, False):  # a batch of a, one b
        a, b = random(3, 13, 9, dtype="f16"), random(13, 5, dtype="f16")
        check("matmul", [a, b], transpose_a=True)


def test_more_tiles_than_stages(monkeypatch):
    only(monkeypatch, WarpTile(64, 64, 32, 32, 4))
    product(8, 8, 64 * 7 + 8, dtype="bf16")


def test_parts_of_sums(monkeypatch):
    only(monkeypatch, Tile(32, 32, 16, 4, 4), 3)
    product(5, 6, 16 * 7 + 3)
    check("linear", [random(5, 130), random(6, 130), random(6)])
    only(monkeypatch, WarpTile(64, 64, 32, 32, 4), 2)
    check("linear", [random(*s, dtype="f16") for s in ((5, 200), (6, 200), (6,))])


def test_many_parts_are_added_in_order(monkeypatch):
    only(monkeypatch, Tile(32, 32, 16, 4, 4), 19)
    product(3, 3, 16 * 19)


@pytest.mark.parametrize(
    "shapes",
    [
        [(5,), (5, 9)],
        [(5, 9), (9,)],
        [(300,), (300,)],
        [(2, 1, 24), (24, 8)],
        [(2, 1, 24), (2, 24, 7)],
        [(3, 2, 1, 9), (2, 9, 4)],
        [(2, 4, 70), (2, 70, 1)],
        [(1, 200), (200, 136)],
    ],
)
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_vectors(shapes, dtype):
    check("matmul", [random(*s, dtype=dtype) for s in shapes])


@pytest.mark.parametrize(
    "shapes", [[(2, 3, 5, 7), (3, 7, 4)], [(4, 5, 6), (6, 3)], [(3, 1, 4, 5), (1, 2, 5, 6)]]
)
def test_batches(shapes):
    check("matmul", [random(*s) for s in shapes])


def test_a_bias_for_each_column():
    for dtype in ("f32", "bf16", "i32"):
        check("linear", [random(*s, dtype=dtype) for s in ((3, 20), (9, 20), (9,))])
    check("linear", [random(1, 20), random(9, 20), random(9)])
    check("linear", [random(5, 20), random(1, 20), random(1)])


def test_operands_of_several_types():
    half, whole = random(5, 6, dtype="bf16"), random(6, 7, dtype="i32")
    check_mixed(half, whole)
    check_mixed(random(5, 6, dtype="f16"), random(6, 7, dtype="bf16"))


def check_mixed(a: np.ndarray, b: np.ndarray) -> None:
    op = OPS["matmul"]
    (found,) = simulator.execute(op, [a, b], complete(op, {}))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.allclose(found.astype(np.float64), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shapes", [[(0, 4), (4, 3)], [(3, 0), (0, 5)], [(0,), (0,)]])
def test_nothing_to_sum(shapes):
    for dtype in ("f32", "f16", "i32"):
        check("matmul", [random(*s, dtype=dtype) for s in shapes])


def test_infinities_stay_in_their_rows():
    """Rows beyond the matrix repeat the last one; terms beyond it are zeros in both operands."""
    a, b = random(5, 7), random(7, 6)
    a[4] = np.inf
    op = OPS["matmul"]
    (found,) = simulator.execute(op, [a, b], complete(op, {}))
    assert np.isfinite(found[:4]).all()
    assert not np.isfinite(found[4]).any()


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("bij,bjk->bik", [(2, 4, 5), (2, 5, 6)]),
        ("ij,kj->ik", [(4, 5), (6, 5)]),
        ("i,i->", [(7,), (7,)]),
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ab,cd->abcd", [(2, 3), (4, 5)]),
        ("bhqk,bkhd->bqhd", [(2, 2, 3, 4), (2, 4, 2, 8)]),  # rows of the result have gaps
        ("bi,bji->jb", [(2, 5), (2, 3, 5)]),
        ("ba,bc->abc", [(2, 3), (2, 4)]),
    ],
)
def test_einsum(equation, shapes):
    for dtype in ("f32", "bf16", "i32"):
        check("einsum", [random(*s, dtype=dtype) for s in shapes], equation=equation)


def test_warp_groups_need_their_architecture():
    """Elsewhere halves take other kernels; old architectures have no tensor cores of this kind."""
    for arch, paces in (("sm_90", WARPGROUPS), ("sm_100", HALVES), ("sm_89", HALVES[1:])):
        with targeting(arch):
            assert tuple(of_halves()) == paces
    with targeting("sm_75"):
        product(9, 10, 11, dtype="bf16")
