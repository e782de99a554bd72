"""Ops that move elements beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402


def data(*shape: int, dtype="f4") -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


CASES = {
    "reshape": ("y = reshape(x, shape=[4, -1])", lambda x: x.reshape(4, -1), (2, 4, 3)),
    "flatten": ("y = flatten(x, start=1)", lambda x: x.flatten(1), (2, 4, 3)),
    "squeeze": ("y = squeeze(x, axes=[0, 2])", lambda x: x.squeeze((0, 2)), (1, 4, 1)),
    "unsqueeze": ("y = unsqueeze(x, axes=[1])", lambda x: x.unsqueeze(1), (3, 4)),
    "transpose": (
        "y = transpose(x, perm=[2, 0, 3, 1])",
        lambda x: x.permute(2, 0, 3, 1),
        (2, 3, 4, 5),
    ),
    "broadcast": ("y = broadcast(x, shape=[2, -1, 5])", lambda x: x.expand(2, -1, 5), (3, 1)),
    "flip": ("y = flip(x, axes=[0, 2])", lambda x: x.flip(0, 2), (3, 4, 5)),
    "roll": (
        "y = roll(x, shifts=[1, -7], axes=[0, 2])",
        lambda x: x.roll((1, -7), (0, 2)),
        (3, 4, 5),
    ),
    "tile": ("y = tile(x, repeats=[2, 1, 3])", lambda x: x.repeat(2, 1, 3), (4, 5)),
    "tril": ("y = tril(x, diagonal=-1)", lambda x: x.tril(-1), (2, 4, 6)),
    "triu": ("y = triu(x, diagonal=1)", lambda x: x.triu(1), (2, 6, 4)),
    "split": (
        "a, b, c = split(x, sizes=[1, 4, 2], axis=-1)",
        lambda x: torch.split(x, [1, 4, 2], -1),
        (3, 7),
    ),
    "chunk": ("a, b, c = split(x, sections=3, axis=1)", lambda x: torch.chunk(x, 3, 1), (2, 7)),
    "slice": ("y = slice(x, starts=[1], ends=[-1], axes=[1])", lambda x: x[:, 1:-1], (3, 6)),
    "slice beyond": (
        "y = slice(x, starts=[-9], ends=[99], axes=[1])",
        lambda x: x[:, -9:99],
        (3, 6),
    ),
    "slice with steps": (
        "y = slice(x, starts=[1, 0], ends=[9, 9], steps=[2, 3])",
        lambda x: x[1::2, ::3],
        (6, 7),
    ),
    "slice backwards": (
        "y = slice(x, starts=[-1], ends=[-100], axes=[1], steps=[-2])",
        lambda x: x[:, 1::2].flip(1),
        (3, 6),
    ),
    "select": ("y = select(x, index=-2, axis=1)", lambda x: x.select(1, -2), (3, 5, 2)),
    "diagonal": (
        "y = diagonal(x, offset=-1, axes=[2, 0])",
        lambda x: torch.diagonal(x, -1, 2, 0),
        (4, 3, 5),
    ),
    "pad": (
        "y = pad(x, pads=[0, 1, 2, 3], value=0.5)",
        lambda x: torch.nn.functional.pad(x, (1, 3, 0, 2), value=0.5),
        (3, 4),
    ),
    "pad that crops": (
        "y = pad(x, pads=[-1, 2, 0, -3])",
        lambda x: torch.nn.functional.pad(x, (2, -3, -1, 0)),
        (3, 4),
    ),
    "pad of sequences, reflecting": (
        'y = pad(x, pads=[0, 0, 3, 0, 0, 2], mode="reflect")',
        lambda x: torch.nn.functional.pad(x, (3, 2), mode="reflect"),
        (2, 3, 4),
    ),
    "pad of volumes, reflecting": (
        'y = pad(x, pads=[0, 0, 1, 2, 0, 0, 0, 2, 1, 3], mode="reflect")',
        lambda x: torch.nn.functional.pad(x, (0, 3, 2, 1, 1, 2), mode="reflect"),
        (2, 1, 3, 4, 5),
    ),
    "pad of volumes, edge": (
        'y = pad(x, pads=[0, 0, 1, 2, 0, 0, 0, 2, 1, 3], mode="edge")',
        lambda x: torch.nn.functional.pad(x, (0, 3, 2, 1, 1, 2), mode="replicate"),
        (2, 1, 3, 4, 5),
    ),
    "pad of volumes, wrapped": (
        'y = pad(x, pads=[0, 0, 1, 2, 0, 0, 0, 2, 1, 3], mode="wrap")',
        lambda x: torch.nn.functional.pad(x, (0, 3, 2, 1, 1, 2), mode="circular"),
        (2, 1, 3, 4, 5),
    ),
    "pad, reflecting": (
        'y = pad(x, pads=[0, 0, 2, 1, 0, 0, 1, 3], mode="reflect")',
        lambda x: torch.nn.functional.pad(x, (1, 3, 2, 1), mode="reflect"),
        (1, 2, 3, 4),
    ),
    "pad, edge": (
        'y = pad(x, pads=[0, 0, 2, 1, 0, 0, 1, 5], mode="edge")',
        lambda x: torch.nn.functional.pad(x, (1, 5, 2, 1), mode="replicate"),
        (1, 2, 3, 4),
    ),
    "pad, wrapping": (
        'y = pad(x, pads=[0, 0, 2, 1, 0, 0, 1, 3], mode="wrap")',
        lambda x: torch.nn.functional.pad(x, (1, 3, 2, 1), mode="circular"),
        (1, 2, 3, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_moves(name):
    statement, peer, shape = CASES[name]
    compare(statement, peer, x=data(*shape))


def test_concat():
    compare(
        "y = concat(a, b, axis=1)",
        lambda a, b: torch.cat((a, b), 1),
        a=data(2, 3, 4),
        b=data(2, 5, 4),
    )


def test_stack():
    compare(
        "y = stack(a, b, axis=-1)", lambda a, b: torch.stack((a, b), -1), a=data(3, 4), b=data(3, 4)
    )


def test_slice_scatter():
    compare(
        "y = slice_scatter(x, source, starts=[1], ends=[6], axes=[1], steps=[2])",
        lambda x, source: torch.slice_scatter(x, source, 1, 1, 6, 2),
        x=data(3, 7),
        source=data(3, 3),
    )


def test_diagonal_scatter():
    compare(
        "y = diagonal_scatter(x, source, offset=1)",
        lambda x, source: torch.diagonal_scatter(x, source, 1),
        x=data(4, 4, 2),
        source=data(2, 3),
    )


def test_integers_and_bools_move_bit_for_bit():
    x = np.random.default_rng(0).integers(-99, 99, (3, 5))
    for dtype in (np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_, np.float16):
        compare("y = transpose(x)", lambda x: x.permute(1, 0), wrt=(), x=x.astype(dtype))
