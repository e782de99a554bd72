"""The intrinsics of `cuda.compiling.score_tiles` as plain Python, for the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opstep.runtime.device.cuda.simulator.simulated import plain
from opstep.runtime.device.cuda.simulator.simulated_tiles import (
    for_lanes,
    halves_block,
    halves_operand,
    of_warp,
    of_warpgroup,
    rounded_to_half,
)


def _rows(numbers: Sequence[float]) -> np.ndarray:
    """[eight columns, row, neighbour]"""
    return np.array(numbers, np.float32).reshape(-1, 2, 2)


def _of_rows(low, high) -> np.ndarray:
    return np.array([low, high], np.float32)[:, None]


def _columns(count: int) -> np.ndarray:
    """Those of a thread's numbers, like `_rows`."""
    return np.arange(count // 4)[:, None, None] * 8 + np.arange(2)


def _numbers(rows: np.ndarray) -> tuple:
    return tuple(rows.astype(np.float32).reshape(-1))


scale_rows = plain(lambda numbers, low, high: _numbers(_rows(numbers) * _of_rows(low, high)))
powers_by_rows = plain(
    lambda scores, low, high: _numbers(np.exp2(_rows(scores) - _of_rows(low, high)))
)


def _of_columns(pointer, count: int) -> np.ndarray:
    return np.array([pointer.load(8 * j, 2) for j in range(count // 4)], np.float32)[:, None]


@plain
def powers_by_columns(scores, pointer):
    return _numbers(np.exp2(_rows(scores) - _of_columns(pointer, len(scores))))


@plain
def differences_by_columns(weights, numbers, pointer):
    inner = _of_columns(pointer, len(weights))
    return _numbers(_rows(weights) * (_rows(numbers) - inner))


@plain
def differences_by_rows(weights, numbers, low, high):
    return _numbers(_rows(weights) * (_rows(numbers) - _of_rows(low, high)))


@plain
def hide_columns(scores, low, low_end, high, high_end):
    columns = _columns(len(scores))
    first, end = np.array([[low], [high]]), np.array([[low_end], [high_end]])
    return _numbers(np.where((columns >= first) & (columns < end), _rows(scores), -np.inf))


def mask_scores(is_bool: int, paired: int = 0):
    def apply(scores, mask, low, high, step, last, factor):
        columns = np.minimum(_columns(len(scores)), last) * step
        places = columns + np.array([[low], [high]])
        found = np.array([mask[at] for at in places.reshape(-1)]).reshape(places.shape)
        if is_bool:
            rows = _rows(scores)
            return _numbers(np.where(found != 0, rows, rows - np.float32(np.inf)))
        return _numbers(found.astype(np.float32) * np.float32(factor) + _rows(scores))

    return apply


def _of_four_lanes(value: Any, combine: np.ufunc) -> Any:
    return for_lanes(4, value, lambda given: combine.reduce(given))


@plain
def soften(scores, low_top, high_top):
    rows, before = _rows(scores), np.array([low_top, high_top], np.float32)
    top = np.maximum(before, _of_four_lanes(rows.max((0, 2)), np.maximum))
    shift = np.where(top == -np.inf, np.float32(0), top)
    powers = np.exp2(rows - shift[:, None])
    return (_numbers(powers), *top, *np.exp2(before - shift), *powers.sum((0, 2)))


row_products = plain(lambda a, b: tuple((_rows(a) * _rows(b)).sum((0, 2))))
sum_of_four = plain(lambda x: _of_four_lanes(np.float32(x), np.add))


def _halves(weights: Sequence[float], bf16: int) -> np.ndarray:
    return rounded_to_half(np.array(weights, np.float32), bf16)


def _left(given: list, bf16: int) -> np.ndarray:
    """The left operand that the lanes of warps hold: 16 rows of each warp by terms."""
    lanes = np.array([_halves(weights, bf16) for weights in given])
    parts = lanes.reshape(-1, 8, 4, lanes.shape[1] // 4, 2, 2)  # warp, row, columns, eights, ...
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(len(given) // 2, -1)


def warp_weighted(n_tiles: int, steps: int, extent: int, bf16: int):
    def product(given):
        pointers = [b for _, b in given]
        columns = [
            np.hstack([halves_block(pointers, s, j, 1, extent, bf16, True) for s in range(steps)])
            for j in range(n_tiles // 2)
        ]
        return _left([weights for weights, _ in given], bf16) @ np.vstack(columns).T

    def multiply(sums, weights, b):
        made = for_lanes(32, (weights, b), product)
        return tuple(np.array(sums, np.float32) + of_warp(made, 1))

    return multiply


def warpgroup_weighted(columns: int, steps: int, bf16: int):
    def product(given):
        right = halves_operand(given[0][1], columns, 16 * steps, 1, 0, bf16)
        return _left([weights for weights, _ in given], bf16) @ right.T

    def multiply(sums, weights, b):
        made = for_lanes(128, (weights, b), product)
        return tuple(np.array(sums, np.float32) + of_warpgroup(made))

    return multiply
