"""The places that a grid names, among the pixels of an image."""

from __future__ import annotations

import math

import numpy as np

BEYOND = -100.0  # a place that no element is near
FARTHEST = 1e9


def place_of(coordinate, size, padding, aligned):
    """(the place among `size` pixels that -1 … 1 stands for, its derivative)."""
    c = np.float64(coordinate)
    place, slope = ((c + 1) * size - 1) * 0.5, size * 0.5
    low, high = -0.5, size - 0.5
    if aligned:
        place, slope = (c + 1) * 0.5 * (size - 1), (size - 1) * 0.5
        low, high = 0.0, size - 1.0
    if padding == 2:
        span = high - low
        apart = place - low
        if span <= 0:
            place, slope = 0.0, 0.0
        else:
            if apart < 0:
                apart, slope = -apart, -slope
            turns = np.fmod(apart, 2 * span)
            place = low + turns
            if turns >= span:
                place, slope = high - (turns - span), -slope
    if padding > 0:
        if not place > 0:
            place, slope = 0.0, 0.0
        if place >= size - 1:
            place, slope = size - 1.0, 0.0
    if not (-FARTHEST < place < FARTHEST):
        place = BEYOND
    return place, slope


def looked_at(grid, unit, height, width, nearest, padding, aligned):
    """Of a place of the grid: the row and the column of its first pixel, how far beyond these it
    lies, and the derivatives of both by the place's coordinates.
    """
    column, across = place_of(grid[2 * unit], width, padding, aligned)
    row, along = place_of(grid[2 * unit + 1], height, padding, aligned)
    if nearest:
        return nearest_to(row), nearest_to(column), np.float64(0), np.float64(0), along, across
    top, left = np.int64(math.floor(row)), np.int64(math.floor(column))
    return top, left, row - top, column - left, along, across


def weight_of(tap, down, right):
    """Of one of the four pixels around a place, row by row; see `looked_at`."""
    return (down if tap // 2 else 1 - down) * (right if tap % 2 else 1 - right)


def nothing_at(coordinate, padding):
    """The sum of no pixels, where there are zeros around the image: NaN where a coordinate is, as
    zeros have weights, too. Other paddings take NaN for the first pixel.
    """
    return math.nan if padding == 0 and coordinate != coordinate else 0.0


def nearest_to(place):
    """The nearest integer; of two, the even one."""
    below = np.int64(math.floor(place))
    over = place - below
    odd = below % 2 == 1
    return below + (1 if over > 0.5 or (over == 0.5 and odd) else 0)
