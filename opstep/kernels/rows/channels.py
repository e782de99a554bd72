"""Kernels that normalise channels with fixed statistics."""

from __future__ import annotations

import math


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
