"""Kernels that normalise channels: with fixed statistics, or with those of the batch."""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.rows.rows import rounded, row_sum_in_f64, squared_distance
from opstep.runtime.device.builtin import offset

COLUMNS = 64  # channels that are worked on side by side, where a plane is one element


def normalised(x, scale, bias, mean, var, epsilon):
    return (x - mean) * (scale / math.sqrt(var + epsilon)) + bias


def channel_factors(scale, var, factor, epsilon, lo, hi):
    for c in range(lo, hi):
        factor[c] = scale[c] / math.sqrt(var[c] + epsilon)


def normalise_channels(x, mean, factor, bias, y, channels, plane, lo, hi):
    """Units are elements; a channel's plane is a run of them."""
    i = lo
    while i < hi:
        c = i // plane % channels
        if plane == 1:
            count = min(channels - c, hi - i)
            for k in range(count):
                y[i + k] = (x[i + k] - mean[c + k]) * factor[c + k] + bias[c + k]
        else:
            count = min(plane - i % plane, hi - i)
            centre, slope, shift = mean[c], factor[c], bias[c]
            for k in range(i, i + count):
                y[k] = (x[k] - centre) * slope + shift
        i += count


def put_channel(c, centre, variance, scale, bias, mean, var, factor, shift, epsilon):
    """A channel's statistics, in f64 until here: its results, and y = (x - mean)*factor + shift.

    The shift makes good what the mean loses when it is stored.
    """
    mean[c] = centre
    var[c] = variance
    slope = np.float64(scale[c]) / math.sqrt(variance + epsilon)
    lost = centre - np.float64(mean[c])
    factor[c] = slope
    shift[c] = bias[c] if lost == 0.0 else bias[c] - lost * slope


def plane_statistics(
    x, scale, bias, mean, var, factor, shift, outer, channels, plane, epsilon, lo, hi
):
    """Units are channels."""
    for c in range(lo, hi):
        seen = np.float64(0.0)
        centre = np.float64(0.0)
        spread = np.float64(0.0)  # sum of squared distances from the mean
        for n in range(outer):
            row = offset(x, (n * channels + c) * plane)
            own = row_sum_in_f64(row, plane) / plane
            near = rounded(own)
            off = own - np.float64(near)
            own_spread = squared_distance(row, near, plane) - off * off * plane
            step = own - centre
            total = seen + plane
            spread += own_spread + step * step * seen * plane / total
            centre += step * plane / total
            seen = total
        centre = centre if seen > 0 else np.nan
        put_channel(c, centre, spread / seen, scale, bias, mean, var, factor, shift, epsilon)


def column_statistics(
    x, scale, bias, mean, var, factor, shift, outer, channels, epsilon, sums, squares, lo, hi, lane
):
    """As `plane_statistics`, for planes of one element."""
    centre = offset(sums, lane * COLUMNS)
    spread = offset(squares, lane * COLUMNS)
    for first in range(lo, hi, COLUMNS):
        count = min(COLUMNS, hi - first)
        for k in range(count):
            centre[k] = 0.0
            spread[k] = 0.0
        for n in range(outer):
            row = offset(x, n * channels + first)
            for k in range(count):
                centre[k] += row[k]
        for k in range(count):
            centre[k] /= outer
        for n in range(outer):
            row = offset(x, n * channels + first)
            for k in range(count):
                away = row[k] - centre[k]
                spread[k] += away * away
        for k in range(count):
            c = first + k
            variance = spread[k] / outer
            put_channel(c, centre[k], variance, scale, bias, mean, var, factor, shift, epsilon)
