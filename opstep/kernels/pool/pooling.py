"""Kernels behind poolings of images: a lane goes over output rows, first down the columns, then
along the row.
"""

from __future__ import annotations

import numpy as np

from opstep.runtime.device.builtin import copy_run, offset, pick, thin_run


def highest_of_windows(
    x, y, lines, line, apart, lowest, height, width, out_h, out_w, kernel_h, kernel_w, stride_h,
    stride_w, top, left, dilation_h, dilation_w, lo, hi, lane,
):  # fmt: skip
    """y[plane, i, j] = the largest of the window, NaN where it holds one; a unit is a row of y.

    Each maximum goes to other memory than what it is taken of: LLVM would store it under a mask if
    it went where one of the two stands, and that takes four times as long.
    """
    columns = offset(lines, lane * apart)  # the largest of each column that the row's windows meet
    others = offset(columns, line)
    thinned = offset(others, line)
    taken = offset(thinned, out_w)
    more = offset(taken, out_w)
    valid = min(width, line - left)
    for unit in range(lo, hi):
        plane = offset(x, unit // out_h * height * width)
        first = unit % out_h * stride_h - top
        for j in range(2 * line):
            columns[j] = lowest
        highest, following = columns, others
        for r in range(kernel_h):
            h = first + r * dilation_h
            if 0 <= h < height:
                row = offset(plane, h * width)
                take_largest(row, offset(highest, left), offset(following, left), valid)
                highest, following = following, highest
        out = offset(y, unit * out_w)
        found, following = taken, more
        for s in range(kernel_w):
            seen = offset(highest, s * dilation_w)
            if stride_w == 2:
                thin_run(found if s == 0 else thinned, seen, out_w)
            elif stride_w > 2 or s == 0:
                to = found if s == 0 else thinned
                for j in range(out_w):
                    to[j] = seen[j * stride_w]
            if s > 0:
                to = out if s == kernel_w - 1 else following
                take_largest(seen if stride_w == 1 else thinned, found, to, out_w)
                found, following = following, found
        if kernel_w == 1:
            copy_run(out, found, out_w)


def take_largest(x, y, z, count):
    """z[j] = the larger of x[j] and y[j], NaN where one of them is."""
    for j in range(count):
        v, m = x[j], y[j]
        z[j] = pick((v > m) | (v != v), v, m)


def argmax_of_window(x, height, width, h0, w0, kernel_h, kernel_w, dilation_h, dilation_w):
    """Where in a plane a window's largest element is: the first such, or the last NaN; -1 in an
    empty window.
    """
    found = -1
    highest = x[0]
    for r in range(kernel_h):
        h = h0 + r * dilation_h
        if 0 <= h < height:
            for s in range(kernel_w):
                w = w0 + s * dilation_w
                if 0 <= w < width:
                    v = x[h * width + w]
                    if found < 0 or v > highest or v != v:
                        found = h * width + w
                        highest = v
    return found


def max_and_indices(
    x, y, indices, lowest, height, width, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, top,
    left, dilation_h, dilation_w, lo, hi,
):  # fmt: skip
    """The largest of each window, and its index in its plane; a unit is a row of y."""
    there = height * width > 0  # else all windows lie in the padding
    for unit in range(lo, hi):
        plane = offset(x, unit // out_h * height * width)
        first = unit % out_h * stride_h - top
        for j in range(out_w):
            at = -1
            if there:
                at = argmax_of_window(
                    plane, height, width, first, j * stride_w - left, kernel_h, kernel_w,
                    dilation_h, dilation_w,
                )  # fmt: skip
            if at < 0:
                y[unit * out_w + j] = lowest
                indices[unit * out_w + j] = 0
            else:
                y[unit * out_w + j] = plane[at]
                indices[unit * out_w + j] = at


def max_gradient(
    gy, x, gx, maxima, maxima_apart, places, places_apart, begins, ends, height, width, out_h,
    out_w, kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w, lo, hi, lane,
):  # fmt: skip
    """gx: each window's gy, added where the window's largest element stands; a unit is a plane.

    A row of windows is looked at together, one of their taps at a time: the windows from begins[s]
    to ends[s], for whom tap s of a row is in the image. `places` are the largest elements', counted
    from where the window begins; -1: none yet.
    """
    best = offset(maxima, lane * maxima_apart)
    at = offset(places, lane * places_apart)
    for unit in range(lo, hi):
        plane = offset(x, unit * height * width)
        to = offset(gx, unit * height * width)
        for j in range(height * width):
            to[j] = 0
        for i in range(out_h):
            first = i * stride_h - top
            for j in range(out_w):
                best[j] = 0  # compared, whatever comes of it
                at[j] = -1
            for r in range(kernel_h):
                h = first + r * dilation_h
                if 0 <= h < height:
                    for s in range(kernel_w):
                        w = s * dilation_w
                        take_larger(
                            offset(plane, h * width + w - left), best, at,
                            (h - first) * width + w, begins[s], ends[s], stride_w,
                        )  # fmt: skip
            row = offset(gy, (unit * out_h + i) * out_w)
            for j in range(out_w):
                if at[j] >= 0:
                    to[first * width - left + j * stride_w + at[j]] += row[j]


def take_larger(seen, best, at, place, begin, end, stride):
    """What argmax_of_window takes, of one tap of many windows."""
    if stride == 1:
        for j in range(begin, end):
            v, m = seen[j], best[j]
            taken = (at[j] < 0) | (v > m) | (v != v)
            best[j] = v if taken else m
            at[j] = place if taken else at[j]
    elif stride == 2:
        for j in range(begin, end):
            v, m = seen[j * 2], best[j]
            taken = (at[j] < 0) | (v > m) | (v != v)
            best[j] = v if taken else m
            at[j] = place if taken else at[j]
    else:
        for j in range(begin, end):
            v, m = seen[j * stride], best[j]
            taken = (at[j] < 0) | (v > m) | (v != v)
            best[j] = v if taken else m
            at[j] = place if taken else at[j]


def average_windows(
    x, y, lines, apart, height, width, out_h, out_w, row_from, row_to, row_count, column_from,
    column_to, column_count, lo, hi, lane,
):  # fmt: skip
    """y[plane, i, j] = sum of x[plane, rows of i, columns of j] / their counts; a unit is a row of
    y.
    """
    sums = offset(lines, lane * apart)
    for unit in range(lo, hi):
        plane = offset(x, unit // out_h * height * width)
        i = unit % out_h
        for w in range(width):
            sums[w] = 0
        for h in range(row_from[i], row_to[i]):
            row = offset(plane, h * width)
            for w in range(width):
                sums[w] += row[w]
        for j in range(out_w):
            total = np.float64(0)
            for w in range(column_from[j], column_to[j]):
                total += sums[w]
            y[unit * out_w + j] = total / (row_count[i] * column_count[j])


def spread_over_windows(
    gy, gx, lines, apart, height, width, out_h, out_w, row_from, row_to, row_count, column_from,
    column_to, column_count, lo, hi, lane,
):  # fmt: skip
    """gx: each window's share of gy, added to all of its elements; a unit is a plane."""
    shares = offset(lines, lane * apart)
    for unit in range(lo, hi):
        to = offset(gx, unit * height * width)
        for k in range(height * width):
            to[k] = 0
        for i in range(out_h):
            for w in range(width):
                shares[w] = 0
            for j in range(out_w):
                share = gy[(unit * out_h + i) * out_w + j] / (row_count[i] * column_count[j])
                for w in range(column_from[j], column_to[j]):
                    shares[w] += share
            for h in range(row_from[i], row_to[i]):
                row = offset(to, h * width)
                for w in range(width):
                    row[w] += shares[w]
