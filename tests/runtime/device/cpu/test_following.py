"""Elementwise ops behind convolutions and products, run tile by tile: the bits of one op after the
other, wherever their memory lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opstep.kernels
from opstep.runtime.device.cpu import following
from opstep.runtime.device.cpu.device import CpuDevice
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS

WAYS = ({}, {"threads": 1}, {"threads": 2, "streams": 1}, {"threads": 3}, {"alloc": "fresh"})
EXPRESSIONS = (
    "relu({0})", "clip({0}, low=-0.5, high=0.75)", "tanh({0})", "add({0}, {1})", "mul({1}, {0})",
    "add({0}, same)", "mul(same, {0})", "add({0}, each)", "maximum({0}, {1})",
    "add({0}, {0})", "sub({1}, {0})", "gelu({0})", "add({0}, one)", "clip({0}, low=0.0)",
    "clip({0}, high=0.25)",
)  # fmt: skip


@st.composite
def producers(draw):
    """(the call, the shapes of x and w, that of the result)"""
    kind = draw(st.sampled_from(["conv2d", "alone", "conv1d", "linear", "matmul"]))
    n, size = draw(st.integers(1, 2)), draw(st.integers(1, 40))
    if kind == "linear":
        rows, out, k = size, draw(st.integers(1, 120)), draw(st.integers(1, 40))
        return "linear(x, w)", (rows, k), (out, k), (rows, out)
    if kind == "matmul":
        m, columns, k = draw(st.integers(1, 70)), draw(st.integers(1, 150)), draw(st.integers(1, 9))
        return "matmul(x, w)", (n, m, k), (n, k, columns), (n, m, columns)
    groups = draw(st.sampled_from([1, 1, 2]))
    channels, filters = (groups * draw(st.integers(1, most)) for most in (12, 40))
    taps, stride = draw(st.sampled_from([1, 3])), draw(st.integers(1, 2))
    if kind == "alone":
        groups = channels = filters = draw(st.integers(1, 40))
    axes = 1 if kind == "conv1d" else 2
    out = (size + 2 * (taps // 2) - taps) // stride + 1
    spread = [[stride] * axes, [taps // 2] * axes]
    call = f"conv{axes}d(x, w, stride={spread[0]}, padding={spread[1]}, groups={groups})"
    x = (n, channels, *[size] * axes)
    return call, x, (filters, channels // groups, *[taps] * axes), (n, filters, *[out] * axes)


def program_of(producer, expressions, returned) -> opstep.Program:
    call, x, w, y = producer
    each = (*y[:1], *[1] * (len(y) - 1)) if len(y) == 2 else (y[1], *[1] * (len(y) - 2))
    names = [f"v{k}" for k in range(len(expressions) + 1)]
    lines = [f"  v0 = {call}"]
    for k, expression in enumerate(expressions):
        lines.append(f"  v{k + 1} = {expression.format(names[k], names[max(0, k - 1)])}")
    shapes = {"x": x, "w": w, "same": y, "each": each, "one": ()}
    head = ", ".join(f"{name}: f32{list(shape)}" for name, shape in shapes.items())
    results = ", ".join([f"f32{list(y)}"] * len(returned))
    last = f"  return {', '.join(names[k] for k in returned)}"
    return opstep.loads("\n".join([f"graph main({head}) -> {results} {{", *lines, last, "}", ""]))


def inputs_of(program: opstep.Program, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    types: Any = ((b.name.text, b.type) for b in program.graphs["main"].inputs)
    return {name: rng.standard_normal(t.shape, np.float32) for name, t in types}


def bits(program: opstep.Program, **how) -> list[bytes]:
    return [v.tobytes() for v in program.run("main", inputs_of(program), **how).outputs]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    producers(),
    st.lists(st.sampled_from(EXPRESSIONS), min_size=1, max_size=4),
    st.sampled_from([64, 5000, following._AT_ONCE]),
    st.data(),
)
def test_same_bits_in_random_programs(producer, expressions, at_once, data):
    kept = data.draw(st.lists(st.integers(0, len(expressions) - 1), unique=True, max_size=2))
    program = program_of(producer, expressions, [*kept, len(expressions)])
    alone = bits(program, mode="debug")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_AT_ONCE", at_once)
        for how in WAYS:
            assert bits(program, **how) == alone, how


LARGE = {  # enough work to be shared, cut along rows, along columns, and both
    "pixels": ("conv2d(x, w)", (1, 24, 56, 56), (144, 24, 1, 1), (1, 144, 56, 56)),
    "filters": ("conv2d(x, w)", (1, 160, 7, 7), (960, 160, 1, 1), (1, 960, 7, 7)),
    "both": ("conv2d(x, w)", (1, 96, 14, 14), (576, 96, 1, 1), (1, 576, 14, 14)),
    "windows": (
        "conv2d(x, w, padding=[1, 1])", (2, 32, 28, 28), (64, 32, 3, 3), (2, 64, 28, 28),
    ),
    "planes": (
        "conv2d(x, w, padding=[1, 1], groups=96)", (1, 96, 56, 56), (96, 1, 3, 3), (1, 96, 56, 56),
    ),
    "turned": ("linear(x, w)", (100, 300), (700, 300), (100, 700)),
    "matrices": ("matmul(x, w)", (3, 140, 64), (3, 64, 200), (3, 140, 200)),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("at_once", [1000, following._AT_ONCE])
def test_same_bits_where_threads_share(monkeypatch, name, at_once):
    monkeypatch.setattr(following, "_AT_ONCE", at_once)
    program = program_of(LARGE[name], ("relu({0})", "add({0}, same)", "add({0}, {1})"), [3, 1])
    alone = bits(program, mode="debug")
    assert all(bits(program, **how) == alone for how in WAYS)


CLAMPS = (
    "relu(c)", "clip(c, low=0.0, high=6.0)", "clip(c, low=-0.0)", "clip(c, high=-0.0)",
    "clip(c, low=0.1)", "clip(c, low=1.0, high=-1.0)", "relu(c)\n z = clip(y, high=0.1)",
)  # fmt: skip
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 0.1, -1.0, 6.0, 6.000001, 3e38, -3e38)


PRODUCTS = {  # each copies a number of x, or adds it to zeros: shapes of x, w, b and the result
    "conv2d(x, w, b)": ([2, 1, 7, 7], [40, 1, 1, 1], [40], [2, 40, 7, 7]),
    "conv2d(x, w, b, padding=[1, 1])": ([2, 1, 7, 7], [40, 1, 3, 3], [40], [2, 40, 7, 7]),
    "linear(x, w, b)": ([40, 1], [49, 1], [49], [40, 49]),
    "linear(x, w, b, transpose_w=true)": ([40, 1], [1, 49], [49], [40, 49]),
}


@pytest.fixture
def left_out(monkeypatch) -> list[int]:
    """How many launches each piece of work does without."""
    found = []

    def counted(launches, clamped=following.clamped):
        kept = clamped(launches)
        found.append(len(launches) - len(kept))
        return kept

    monkeypatch.setattr("opstep.runtime.device.cpu.device.clamped", counted)
    return found


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_clamped_as_they_are_stored(left_out, clamp, dtype, product):
    *shapes, y = PRODUCTS[product]
    head = ", ".join(f"{n}: {dtype}{shape}" for n, shape in zip("xwb", shapes, strict=True))
    last = "z" if "z" in clamp else "y"
    body = f" c = {product}\n y = {clamp}\n return {last}\n"
    program = opstep.loads(f"graph main({head}) -> {dtype}{y} {{\n{body}}}\n")
    kind = np.dtype(f"f{int(dtype[1:]) // 8}")
    x, w, b = np.resize(np.array(SPECIAL, kind), shapes[0]), np.ones(shapes[1], kind), shapes[2]
    if w.shape[-1] == 3:
        w[...] = [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    given = {"x": x, "w": w, "b": np.full(b, -0.0, kind)}
    (alone,) = program.run("main", given, mode="debug").outputs
    for how in WAYS:
        left_out.clear()
        (found,) = program.run("main", given, **how).outputs
        assert found.tobytes() == alone.tobytes(), how
        assert sum(left_out) == ("alloc" not in how)  # then y has memory of its own


@pytest.mark.parametrize("last", ["relu(c)", "clip(c, low=1.0)"])
def test_what_writes_parts_of_a_result_clamps_none(last):
    text = f"""
    graph main(x: f32[1, 0, 2, 2], w: f32[0, 1, 2, 2], b: f32[1]) -> f32[1, 1, 4, 4] {{
      c = conv_transpose2d(x, w, b, stride=[2, 2])
      y = {last}
      return y
    }}
    """
    given = {"x": np.empty((1, 0, 2, 2), "f4"), "w": np.empty((0, 1, 2, 2), "f4"), "b": [-1.0]}
    for how in WAYS:
        (y,) = opstep.loads(text).run("main", given, **how).outputs
        assert (y == ("low" in last)).all()


def test_limits_are_no_concern_of_numpys():
    text = "graph main(x: f32[3]) -> f32[3] {\n y = clip(x, low=LOW)\n return y\n}\n"
    with np.errstate(all="raise"):
        for low in ("0.0", "-3.4028234663852886e38", "1e-46"):
            program = opstep.loads(text.replace("LOW", low))
            (y,) = program.run("main", {"x": np.array([-1, np.nan, 2], "f4")}).outputs
            assert y[0] == np.clip(np.float32(-1), np.float32(float(low)), None) and y[2] == 2


@pytest.mark.parametrize("name", LARGE)
def test_results_are_those_of_the_oracle(name):
    program = program_of(LARGE[name], ("add({0}, each)", "relu({0})", "mul({0}, same)"), [3])
    inputs = inputs_of(program)
    (found,) = program.run("main", inputs, threads=2).outputs
    x, w, same, each, _ = (v.astype(np.float64) for v in inputs.values())
    op, attrs = OPS[LARGE[name][0].partition("(")[0]], {}
    if op.name == "conv2d":
        wide = "padding" in LARGE[name][0]
        attrs = {"stride": (1, 1), "padding": (wide, wide), "dilation": (1, 1)}
        attrs["groups"] = 96 if name == "planes" else 1
    elif op.name == "matmul":
        attrs = {"transpose_a": False, "transpose_b": False}
    elif op.name == "linear":
        attrs = {"transpose_w": False}
    expected = np.maximum(op.oracle(x, w, **attrs) + each, 0) * same
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


# --- where memory lies ----------------------------------------------------------------------------

SIDE, CHANNELS = 96, 16
PLACES = ("apart", "over y", "over x", "within x", "within y", "over the weights")


def bound(device, name, arrays, attrs, addresses):
    step, stored, results = one_step(OPS[name], arrays, attrs)
    launches, workspace = device.prepare(step, (*stored, *results))
    memory = device.alloc(workspace)
    return memory, device.bind(launches, addresses, memory.address)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("taps", [1, 3])
def test_whatever_memory_an_op_takes_over(monkeypatch, place, taps):
    """Launches captured together do what they do one after the other."""
    monkeypatch.setattr(following, "_AT_ONCE", 4096)
    device, rng = CpuDevice(2), np.random.default_rng(1)
    x = rng.standard_normal((1, CHANNELS, SIDE, SIDE), np.float32)
    w = rng.standard_normal((CHANNELS, CHANNELS, taps, taps), np.float32)
    sizes = [0, x.nbytes, w.nbytes, x.nbytes, x.nbytes]
    at = dict(zip("xwyz", np.cumsum(sizes)[:4].tolist(), strict=True))
    if place == "over the weights":
        at["w"] = at["z"]
    at["z"] = {
        "over y": at["y"], "over x": at["x"], "within x": at["x"] + 320, "within y": at["y"] + 320,
    }.get(place, at["z"])  # fmt: skip
    attrs = {"stride": (1, 1), "padding": (taps // 2,) * 2, "dilation": (1, 1), "groups": 1}
    found = []
    for together in (False, True):
        arena = device.alloc(sum(sizes) + x.nbytes)
        for name, array in (("x", x), ("w", w)):
            arena.bytes[at[name] : at[name] + array.nbytes] = array.reshape(-1).view(np.uint8)
        address = {name: arena.address + k for name, k in at.items()}
        conv = bound(device, "conv2d", [x, w], attrs, [*map(address.get, "xw"), 0, address["y"]])
        relu = bound(device, "relu", [x], {}, [address["y"], address["z"]])
        if together:
            device.capture([*conv[1], *relu[1]])()
        else:
            device.capture(conv[1])()
            before = arena.bytes[at["y"] : at["y"] + x.nbytes].view(np.float32).copy()
            device.capture(relu[1])()
        found.append(arena.bytes[at["z"] : at["z"] + x.nbytes].copy())
    if place != "within y":  # which no plan has: elements are overwritten before they are read
        assert (found[0].view(np.float32) == np.maximum(before, 0)).all()
        assert (found[0] == found[1]).all()
    both = [*conv[1], *relu[1]]
    table = following.rows_of(both)
    assert table[-2][following.FOLLOWERS] == (place in ("apart", "over y"))
    clamped = following.clamped(both)  # what is alone in its place is clamped as it is stored
    assert clamped == (conv[1] if place == "over y" else both)
