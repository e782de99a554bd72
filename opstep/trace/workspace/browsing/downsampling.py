"""Fewer points of a line that look like all of them: of each piece of the axis the least and the
greatest, in their order, so that no peak is lost.
"""

from __future__ import annotations

import numpy as np


def downsample(xs: np.ndarray, ys: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points of a line whose xs go up; NaN in `ys` is a gap and stays one.

    `xs`, `ys`: f64[n]. The first and the last point are always there.
    """
    count = len(xs)
    if count <= most or most < 4:
        return xs, ys
    pieces = (most - 2) // 3
    low, high = float(xs[0]), float(xs[-1])
    if high > low:
        borders = np.searchsorted(xs, np.linspace(low, high, pieces + 1)[:-1])
    else:
        borders = np.linspace(0, count, pieces + 1)[:-1].astype(np.int64)
    borders = np.unique(borders)
    gap = np.isnan(ys)
    least, greatest = (
        _at(np.where(gap, fill, ys), borders, pick)
        for fill, pick in ((np.inf, np.minimum), (-np.inf, np.maximum))
    )
    gaps = borders[np.add.reduceat(gap.astype(np.int64), borders) > 0]
    first_gaps = gaps + _first(gap, gaps, np.append(borders, count))
    indices = np.unique(np.concatenate([[0], least, greatest, first_gaps, [count - 1]]))
    return xs[indices], ys[indices]


def _at(ys: np.ndarray, borders: np.ndarray, pick: np.ufunc) -> np.ndarray:
    """Where the extreme of each piece stands: the first of equal ones."""
    ends = np.append(borders[1:], len(ys))
    extremes = np.repeat(pick.reduceat(ys, borders), ends - borders)
    hits = np.flatnonzero(ys == extremes)
    pieces = np.searchsorted(borders, hits, side="right") - 1
    _, first = np.unique(pieces, return_index=True)
    return hits[first]


def _first(gap: np.ndarray, begins: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Of pieces that have a gap: how far behind their begin it stands."""
    ends = borders[np.searchsorted(borders, begins, side="right")]
    found = [int(np.argmax(gap[a:b])) for a, b in zip(begins, ends, strict=True)]
    return np.array(found, np.int64)
