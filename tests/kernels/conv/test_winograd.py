"""Convolutions by filters of 3x3 pixels that are computed in tiles of 2x2 results."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.kernels.conv import winograd
from opstep.kernels.conv.windows import windows
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.device.launch import Arg
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import TensorType, f32

CONV = OPS["conv2d"]


def attributes(padding):
    return {"stride": (1, 1), "padding": padding, "dilation": (1, 1), "groups": 1}


def random_cases(count: int):
    """(images, channels, filters, height, width, padding, whether there is a bias)"""
    rng = np.random.default_rng(11)
    for _ in range(count):
        channels, filters = (int(rng.integers(30, 90)) for _ in range(2))
        height, width = (int(rng.integers(9, 40)) for _ in range(2))
        padding = tuple(int(p) for p in rng.integers(0, 4, int(rng.choice([2, 4]))))
        yield (
            int(rng.integers(1, 4)), channels, filters, height, width, padding,
            bool(rng.integers(2)),
        )  # fmt: skip


def made(images, channels, filters, height, width, padding, biased, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((images, channels, height, width), np.float32)
    w = rng.standard_normal((filters, channels, 3, 3), np.float32)
    return x, w, rng.standard_normal(filters, np.float32) if biased else None


def is_in_tiles(x, w, padding) -> bool:
    kinds = [TensorType(f32, a.shape) for a in (x, w)]
    y = CONV.infer(*kinds, None, **attributes(padding))
    views = windows((3, 3), (1, 1), padding, (1, 1))
    return winograd.pays(*(Arg(t, k) for k, t in enumerate((*kinds, y))), views, 1)


def result(x, w, b, padding, lanes=1):
    return np.array(execute(CONV, [x, w, b], attributes(padding), lanes=lanes)[0])


def test_near_the_oracle():
    """Within some roundings of the sum of all products' sizes."""
    taken = 0
    for seed, case in enumerate(random_cases(60)):
        padding = case[5]
        x, w, b = made(*case, seed=seed)
        taken += is_in_tiles(x, w, padding)
        wide = [None if v is None else v.astype(np.float64) for v in (x, w, b)]
        expected = CONV.oracle(*wide, **attributes(padding))
        sizes = CONV.oracle(*(None if v is None else abs(v) for v in wide), **attributes(padding))
        off = abs(result(x, w, b, padding) - expected)
        assert (off <= 8 * np.finfo(np.float32).eps * sizes).all(), case
    assert taken > 20


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_result_depends_on_its_window_alone(value, monkeypatch):
    """What is no number has the bits of a sum in turn."""
    x, w, b = made(2, 72, 80, 21, 18, (1, 1), True)
    assert is_in_tiles(x, w, (1, 1))
    whole = result(x, w, b, (1, 1))
    for i, j in ((0, 0), (7, 4), (10, 9), (13, 16), (20, 17)):
        spoilt = x.copy()
        spoilt[1, 5, i, j] = spoilt[1, 71, min(i + 1, 20), j] = value
        found = result(spoilt, w, b, (1, 1))
        meets = np.zeros(whole.shape, bool)
        meets[1, :, max(0, i - 1) : i + 3, max(0, j - 1) : j + 2] = True
        np.testing.assert_array_equal(found[~meets], whole[~meets])
        with monkeypatch.context() as patch:
            patch.setattr(winograd, "pays", lambda *_: False)
            expected = result(spoilt, w, b, (1, 1))
        assert not np.isfinite(expected[meets]).all()
        odd = ~np.isfinite(found)
        np.testing.assert_array_equal(found[odd], expected[odd])
        if not np.isfinite(value):  # else a sum in turn can exceed f32 on its way
            np.testing.assert_array_equal(odd, ~np.isfinite(expected))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_filter_that_is_no_number(value, monkeypatch):
    x, w, b = made(1, 72, 80, 21, 18, (1, 1), True)
    w[7, 3, 0, 1] = value
    found = result(x, w, b, (1, 1))
    monkeypatch.setattr(winograd, "pays", lambda *_: False)
    expected = result(x, w, b, (1, 1))
    assert np.isfinite(np.delete(found, 7, 1)).all()
    np.testing.assert_array_equal(found[:, 7], expected[:, 7])


@pytest.mark.parametrize("channels, filters, size", [(70, 83, 27), (128, 128, 7)])
def test_threads_and_images_change_no_bit(channels, filters, size):
    x, w, b = made(5, channels, filters, size, size - 1, (1, 0), True)
    assert is_in_tiles(x, w, (1, 0)) == (size > 7)
    whole = result(x, w, b, (1, 0))
    for lanes in (2, 3, 7):
        assert result(x, w, b, (1, 0), lanes).tobytes() == whole.tobytes()
    for k in range(len(x)):
        assert result(x[k : k + 1], w, b, (1, 0)).tobytes() == whole[k : k + 1].tobytes()


def test_many_images_take_bounded_memory(monkeypatch):
    """Images are transformed some at a time; that changes no bit."""
    x, w, b = made(7, 64, 66, 30, 30, (1, 1), True)
    assert is_in_tiles(x, w, (1, 1))
    whole = result(x, w, b, (1, 1))
    for rows in (1, 4, 1000):
        monkeypatch.setattr(winograd, "_MEMORY", 0)
        monkeypatch.setattr(winograd, "_LEAST", rows * 15)
        assert result(x, w, b, (1, 1)).tobytes() == whole.tobytes()


@pytest.mark.parametrize("images", [1, 2])
def test_what_follows_a_convolution(images):
    """Elementwise ops behind it, plane by plane or one by one, give what they give apart."""
    x, w, b = made(images, 72, 80, 21, 18, (1, 1), True)
    assert is_in_tiles(x, w, (1, 1))
    program = opstep.loads(
        f"graph main(x: f32[{images}, 72, 21, 18], w: f32[80, 72, 3, 3], b: f32[80],\n"
        f"    z: f32[{images}, 80, 21, 18]) -> f32[{images}, 80, 21, 18] {{\n"
        "  y = conv2d(x, w, b, padding=[1, 1])\n  s = add(y, z)\n  r = relu(s)\n  return r\n}\n"
    )
    z = result(x, w, b, (1, 1))[:, ::-1].copy()
    expected = np.maximum(result(x, w, b, (1, 1)) + z, 0)
    for threads in (1, 2, 3):
        found = program.run("main", {"x": x, "w": w, "b": b, "z": z}, threads=threads).outputs[0]
        np.testing.assert_array_equal(found, expected)
