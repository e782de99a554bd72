"""Sums of products of bytes by CUDA's kernels for halves, which have to be exact."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.kernels.matmul import cuda_bytes
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete


def of_bytes(random: Random, shape) -> np.ndarray:
    """Bytes of either sign, at times all of them as large as can be."""
    low, high = random.choice(((0, 255), (-128, 127)))
    kind = np.uint8 if high == 255 else np.int8
    if random.random() < 0.3:
        return np.full(shape, random.choice((low, high)), kind)
    return np.random.default_rng(random.randrange(99)).integers(low, high + 1, shape).astype(kind)


def check(name: str, arrays: list[np.ndarray], attrs: dict, arch: str) -> None:
    op = OPS[name]
    attrs = complete(op, attrs)
    with targeting(arch):
        (found,) = simulator.execute(op, arrays, attrs)
    np.testing.assert_array_equal(found, op.oracle(*arrays, **attrs))


@pytest.fixture
def room(monkeypatch, request):
    """Sums whose parts are all there at once, or come one after the other."""
    monkeypatch.setattr(cuda_bytes, "_ROOM", 1 if request.param else 1 << 29)


@pytest.mark.parametrize("room", [0, 1], indirect=True)
@pytest.mark.parametrize("seed", range(6))
def test_products_of_matrices(seed, room):
    random = Random(seed)
    m, n, k = random.choice((1, 9, 33)), random.choice((1, 8, 35)), random.choice((32, 257, 530))
    batch, turns = random.choice(((), (2, 3))), [random.random() < 0.5 for _ in range(2)]
    a = of_bytes(random, (*batch, *((k, m) if turns[0] else (m, k))))
    b = of_bytes(
        random, (*(batch if seed % 2 else [1] * len(batch)), *((n, k) if turns[1] else (k, n)))
    )
    b_zero = b.reshape(-1)[:n].copy() if seed % 3 else b.reshape(-1)[0]
    attrs = {"transpose_a": turns[0], "transpose_b": turns[1]}
    arrays = [a, b, a.reshape(-1)[0], b_zero][: random.choice((2, 3, 4))]
    check("matmul_integer", list(map(np.asarray, arrays)), attrs, "sm_90" if seed % 2 else "sm_75")


@pytest.mark.parametrize("room", [0, 1], indirect=True)
@pytest.mark.parametrize("seed", range(6))
def test_convolutions(seed, room):
    random, axes = Random(seed), 1 + seed % 3
    groups, channels = random.choice((1, 2)), random.choice((32, 40))
    kernel = [random.choice((1, 2, 3)) for _ in range(axes)]
    x = of_bytes(random, (random.choice((1, 3)), groups * channels, *[5] * axes))
    w = of_bytes(random, (groups * 9, channels, *kernel))
    bias = np.arange(groups * 9, dtype=np.int32) if seed % 2 else np.array(-7, np.int32)
    attrs = {
        key: tuple(random.choice((1, 2)) for _ in range(axes)) for key in ("stride", "padding")
    }
    arrays = [x, w, bias, np.asarray(x.reshape(-1)[0]), w.reshape(-1)[: groups * 9].copy()]
    arrays = arrays[: random.choice((2, 3, 5))]
    check(f"conv{axes}d_integer", arrays, attrs | {"groups": groups}, "sm_90")
