"""Shape rules of ops that move, pick and normalise: with symbols, and where operands do not fit."""

from __future__ import annotations

import pytest

import opstep
import opstep.kernels  # registers the ops
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.verify import verify

END = 2**63 - 1

FITS = [
    ("x: f32[N, 3, 4]", "reshape(x, shape=[N, 12])", "f32[N, 12]"),
    ("x: f32[N, 3, 4]", "reshape(x, shape=[-1, 4])", "f32[N*3, 4]"),
    ("x: f32[N, 3, 4]", "reshape(x, shape=[N*2, -1])", "f32[N*2, 6]"),
    ("x: f32[N, M]", "reshape(x, shape=[M, N])", "f32[M, N]"),
    ("x: f32[N]", "reshape(x, shape=[-1, 2])", "f32[N//2, 2]"),
    ("x: f32[N, C, H, W]", "flatten(x, start=1)", "f32[N, C*H*W]"),
    ("x: f32[N, 1, M]", "squeeze(x, axes=[1])", "f32[N, M]"),
    ("x: f32[N]", "unsqueeze(x, axes=[0, -1])", "f32[1, N, 1]"),
    ("x: f32[N, M, 3]", "transpose(x, perm=[2, 0, 1])", "f32[3, N, M]"),
    ("x: f32[N, 1], y: f32[M]", "broadcast(x, shape=[N, M])", "f32[N, M]"),
    ("x: f32[N, 1]", "broadcast(x, shape=[5, -1, 7])", "f32[5, N, 7]"),
    ("x: f32[N, 3]", "tile(x, repeats=[2, N])", "f32[N*2, N*3]"),
    ("x: f32[N, 3], y: f32[M, 3]", "concat(x, y)", "f32[N + M, 3]"),
    ("x: f32[N], y: f32[N]", "stack(x, y, axis=1)", "f32[N, 2]"),
    ("x: f32[N, M]", "slice(x, starts=[1], ends=[-1], axes=[1])", "f32[N, M - 2]"),
    ("x: f32[N]", f"slice(x, starts=[2], ends=[{END}])", "f32[N - 2]"),
    ("x: f32[N]", f"slice(x, starts=[0], ends=[{END}], steps=[2])", "f32[(N + 1)//2]"),
    ("x: f32[N]", f"slice(x, starts=[-1], ends=[-{END}], steps=[-1])", "f32[N]"),
    ("x: f32[N]", "slice(x, starts=[N//2], ends=[N])", "f32[N - N//2]"),
    ("x: f32[10], y: f32[N]", "slice(x, starts=[N], ends=[100])", "f32[10 - N]"),
    ("x: f32[N, M]", "select(x, index=-1, axis=0)", "f32[M]"),
    ("x: f32[N, M]", "pad(x, pads=[1, 0, 2, N])", "f32[N + 3, M + N]"),
    ("x: f32[N], i: i64[K, 2]", "gather(x, i)", "f32[K, 2]"),
    ("x: f32[N, M], i: i64[K, M]", "gather_elements(x, i)", "f32[K, M]"),
    ("x: f32[N, M, 3], i: i32[K, 2]", "gather_nd(x, i)", "f32[K, 3]"),
    ("x: f32[N, M, 3], i: i64[K, 1], j: i64[L]", "index(x, i, j, axes=[0, 2])", "f32[K, L, M]"),
    ("x: f32[N, M, 3], i: i64[K]", "index(x, i, axes=[1])", "f32[N, K, 3]"),
    ("x: f32[N, M], s: f32[K], i: i64[K]", "index_put(x, s, i, i)", "f32[N, M]"),
    ("i: i32[N], x: f32[K]", "one_hot(i, classes=K)", "f32[N, K]"),
    ("x: f32[N], i: i64[M], s: f32[M]", "scatter_add(x, i, s)", "f32[N]"),
    ("x: f32[N, 9], y: f32[K]", "top_k(x, k=K, axis=0)", "f32[K, 9], i64[K, 9]"),
    ("x: f32[N, M], s: f32[M]", "layer_norm(x, s, shape=[M])", "f32[N, M]"),
    ("x: f32[N, C, H], s: f32[C]", "batch_norm(x, s, s, s, s)", "f32[N, C, H]"),
    ("x: f16[N, C], s: f16[C]", "batch_norm_train(x, s, s)", "f16[N, C], f32[C], f32[C]"),
    ("x: f32[N, C, H], l: i32[N, H]", "softmax_cross_entropy(x, l)", "f32[]"),
    ("x: f32[N], i: i32[N]", 'mse_loss(x, i, reduction="none")', "f32[N]"),
    ("q: f32[B, L, D], k: f32[B, S, D]", "scaled_dot_product_attention(q, k, k)", "f32[B, L, D]"),
]


@pytest.mark.parametrize("inputs, call, types", FITS)
def test_symbols(inputs, call, types):
    names = ", ".join("abc"[: types.count("[")])
    verify(parse(f"graph g({inputs}) -> {types} {{\n{names} = {call}\nreturn {names}\n}}"))


MISFITS = [
    ("x: f32[N, 4]", "reshape(x, shape=[N, 8])", "f32[N, 4] has N*4 elements and [N, 8] has N*8"),
    ("x: f32[7]", "reshape(x, shape=[2, -1])", "the 7 elements of f32[7] do not divide by 2"),
    ("x: f32[6]", "reshape(x, shape=[-1, -1])", "at most one -1"),
    ("x: f32[6]", "reshape(x, shape=[0, -1])", "cannot be told"),
    ("x: f32[2, 3]", "flatten(x, start=1, end=0)", "start=1 lies behind end=0"),
    ("x: f32[N, 1]", "squeeze(x)", "whether N is 1 in f32[N, 1] shows only at run time"),
    ("x: f32[2, 3]", "squeeze(x, axes=[1])", "axis 1 of f32[2, 3] is 3"),
    ("x: f32[2]", "unsqueeze(x, axes=[3])", "axis 3 is out of range"),
    ("x: f32[2, 3]", "transpose(x, perm=[0])", "must name all 2 axes"),
    ("x: f32[2, 3]", "transpose(x, perm=[0, -2])", "name one axis twice"),
    ("x: f32[3]", "broadcast(x, shape=[3, 4])", "axis 0 is 3, not 1"),
    ("x: f32[N]", "broadcast(x, shape=[8])", "axis 0 is N, not 1"),
    ("x: f32[3]", "broadcast(x, shape=[-1, 3])", "-1 stands for a dim of x"),
    ("x: f32[2, 3]", "broadcast(x, shape=[3])", "has more axes than [3]"),
    ("x: f32[3]", "roll(x, shifts=[1, 2], axes=[0])", "2 shifts for 1 axes"),
    ("x: f32[2, 3]", "tile(x, repeats=[2])", "1 repeats for the 2 axes"),
    ("x: f32[3]", "tril(x)", "holds no matrices"),
    ("x: f32[2, 3], y: f32[2, 4]", "concat(x, y)", "differ in axis 1: 3 and 4"),
    ("x: f32[2, 3], y: f32[2]", "concat(x, y)", "has 1 axes, the first operand 2"),
    ("x: f32[2], y: f32[3]", "stack(x, y)", "f32[2] and f32[3] differ in shape"),
    ("x: f32[7]", "split(x, sizes=[3, 3])", "add up to 6, and the axis is 7"),
    ("x: f32[7]", "split(x, sizes=[9, -1])", "add up to 9, and the axis is 7"),
    ("x: f32[7]", "split(x)", "split wants sizes"),
    ("x: f32[5]", "split(x, sections=4)", "do not make 4 sections of 2"),
    ("x: f32[5]", "slice(x, starts=[1], ends=[2], steps=[0])", "a step of 0"),
    ("x: f32[5]", "slice(x, starts=[1, 2], ends=[3, 4])", "2 starts for 1 axes"),
    ("x: f32[5]", "slice(x, starts=[1], ends=[2, 3])", "2 ends for 1 axes"),
    ("x: f32[5], s: f32[3]", "slice_scatter(x, s, starts=[1], ends=[3])", "the slice is f32[2]"),
    ("x: f32[5]", "select(x, index=5)", "index 5 is outside of an axis of 5"),
    ("x: f32[5]", "pad(x, pads=[1])", "1 pads for the 1 axes"),
    ("x: f32[5]", "pad(x, pads=[-3, -3])", "take more than the 5 of axis 0"),
    ("x: f32[3]", 'pad(x, pads=[3, 0], mode="reflect")', "reflect by 3 needs 4"),
    ("x: f32[3]", 'pad(x, pads=[0, 0], mode="mirror")', "no mode 'mirror'"),
    ("x: i8[3]", "pad(x, pads=[1, 1], value=200)", "value=200 does not fit i8: -128 to 127"),
    ("x: i8[3]", "pad(x, pads=[1, 1], value=0.5)", "value=0.5 is not an integer: i8 is wanted"),
    ("x: f32[2, 3], i: i32[5]", "gather_elements(x, i)", "has 1 axes, f32[2, 3] has 2"),
    ("x: f32[2, 3], i: i32[5, 4]", "gather_elements(x, i)", "is 4, and that of f32[2, 3] only 3"),
    ("x: f32[2, 3], i: i32[5, 3]", "gather_nd(x, i)", "names 3 axes, and f32[2, 3] has 2"),
    ("x: f32[2, 3], i: i32[N]", "gather_nd(x, i)", "must say how many axes"),
    ("x: f32[5], i: i32[2], s: f32[3]", "scatter(x, i, s)", "an element for each index"),
    ("x: f32[5]", "top_k(x, k=6)", "k=6, and axis 0 of f32[5] has 5 elements"),
    ("x: f32[5]", "softmax(x, axis=1)", "a tensor of rank 1 has axes 0 to 0"),
    ("x: f32[]", "softmax(x)", "a tensor of rank 0 has no axes"),
    (
        "x: f32[2, 3], s: f32[2]",
        "layer_norm(x, s, shape=[3])",
        "f32[2] does not fit rows of f32[3]",
    ),
    ("x: f32[2, 3]", "layer_norm(x, shape=[2])", "f32[2, 3] does not end in [2]"),
    ("x: f32[2, 3]", "rms_norm(x, shape=[])", "rows of one element"),
    ("x: f32[2, 3]", "rms_norm(x, shape=[3], epsilon=-1)", "epsilon=-1.0 is below 0"),
    ("x: f32[2, 3], s: f32[2]", "batch_norm(x, s, s, s, s)", "f32[2, 3] has 3 channels"),
    ("x: f32[2, 3]", "group_norm(x, groups=2)", "3 channels do not make 2 equal groups"),
    ("x: f32[2, 3], l: i32[3]", "softmax_cross_entropy(x, l)", "without axis 1 that is [2]"),
    ("x: f32[2, 0], l: i32[2]", "softmax_cross_entropy(x, l)", "has no classes along axis 1"),
    ("x: f32[2, 3], l: i32[2]", 'nll_loss(x, l, reduction="max")', "no reduction 'max'"),
    ("x: f32[2], t: f32[1]", "mse_loss(x, t)", "f32[2] and f32[1] differ in shape"),
    ("x: f32[2], t: f32[2]", "huber_loss(x, t, delta=0)", "delta=0.0 is not above 0"),
]


@pytest.mark.parametrize("inputs, call, message", MISFITS)
def test_what_does_not_fit(inputs, call, message):
    with pytest.raises(opstep.OpstepError) as raised:
        verify(parse(f"graph g({inputs}) -> f32[] {{\ny = {call}\nreturn y\n}}"))
    assert message in str(raised.value)


def test_symbolic_sizes_are_checked_when_they_are_known():
    import numpy as np

    program = opstep.loads(
        "graph g(x: f32[N]) -> f32[N//2, 2] {\ny = reshape(x, shape=[N//2, 2])\nreturn y\n}"
    )
    assert program.run("g", {"x": np.zeros(6, "f4")})["y"].shape == (3, 2)
    with pytest.raises(opstep.OpstepError, match="5 elements"):
        program.run("g", {"x": np.zeros(5, "f4")})
