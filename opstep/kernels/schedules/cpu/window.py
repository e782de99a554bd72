"""Windows on the CPU: a unit is a row of the result, but for what is passed back, a channel. A row
is made of all rows that its windows meet, first down the columns, then along it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from opstep.kernels.schedules.window import (
    FEW,
    LINE,
    ONE,
    Span,
    Terms,
    bits_of,
    deep,
    grain_of,
    positions,
    sizes_of,
)
from opstep.runtime.device.builtin import bits_to_float, copy_run, fixed_sum, offset, pick, thin_run
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.device.source import distinct

# In place of the number of taps: sums of neighbours; elements as they are, or twice each.
_RUNS, _COPIES, _DOUBLES = -1, -2, -3
_WIDE = 2  # windows of a row, by taps, for which taps are taken one by one
_LONG = 32  # neighbours that are worth vectors

# --- maxima ---------------------------------------------------------------------------------------


def largest(x: Arg, y: Arg, lowest: float, spans: Sequence[Span]) -> list[Launch]:
    """y, the largest of each regular window of x; `lowest` where it has no elements.

    Without places: 1.5 (2x2) to 2.4 times (3x3) as fast as `largest_and_places`, f32 on one core.
    """
    spans, out = deep(spans, LINE), sizes_of(y)
    wide, units = spans[2], prod(y.shape[:-1])
    line = max((out[2] - 1) * wide.stride + (wide.taps - 1) * wide.step, wide.before) + 1
    lines = Scratch(x.dtype, 2 * line + 3 * out[2], per_lane=True)
    kinds = (tuple(getattr(s, k) for s in spans) for k in ("taps", "stride", "before", "step"))
    work = units * line * (spans[0].taps * spans[1].taps + 1)
    args = (x, y, lines, line, lines.size, lowest, sizes_of(x), out, *kinds)
    return [Launch(largest_of_rows, *args, units=units, grain=grain_of(units, work))]


def _looking(x: Arg, like: Arg, spans: Sequence[Span]) -> tuple:
    """What `find_places` takes for windows that make something `like`, with working memory."""
    spans, sizes = deep(spans, LINE), sizes_of(x)
    wide, count = spans[2], like.shape[-1]
    found, places = Scratch(x.dtype, count, per_lane=True), positions(x, count, per_lane=True)
    stride = wide.stride if wide.stride in (1, 2) else 0
    begins, met = wide.begins, [(0, count)] * wide.taps
    if stride:
        begins = tuple(j * stride - wide.before for j in range(count))
        met = [wide.met(s, sizes[2]) for s in range(wide.taps)]
    limits = (spans[0].begins + spans[0].ends, spans[1].begins + spans[1].ends)
    steps = (spans[0].step, spans[1].step, wide.step, stride)
    along = (begins, wide.ends, tuple(b for b, _ in met), tuple(e for _, e in met), wide.taps)
    return found, found.size, places, places.size, sizes, sizes_of(like), *limits, steps, *along


def largest_and_places(
    x: Arg, y: Arg, indices: Arg, lowest: float, spans: Sequence[Span]
) -> list[Launch]:
    """y, and where in its channel the largest of each window stands; 0 where there are none."""
    units, work = prod(y.shape[:-1]), 2 * y.size * prod(s.taps for s in spans)
    args = (x, y, indices, lowest, *_looking(x, y, spans))
    return [Launch(find_rows, *args, units=units, grain=grain_of(units, work))]


def passed_to_largest(gy: Arg, x: Arg, gx: Arg, spans: Sequence[Span]) -> list[Launch]:
    """gx: each window's gy, added where the window's largest element stands."""
    units, work = prod(x.shape[:2]), 2 * gy.size * prod(s.taps for s in spans)
    args = (gy, x, gx, *_looking(x, gy, spans))
    units = units if x.size else 0
    return [Launch(pass_to_largest, *args, units=units, grain=grain_of(units, work))]


def largest_of_rows(
    x, y, lines, line, apart, lowest, sizes, out, taps, strides, before, steps, lo, hi, lane
):
    """y = the largest of each window, NaN where it holds one.

    Each maximum goes to other memory than what it is taken of: LLVM would store it under a mask if
    it went where one of the two stands, and that takes four times as long.
    """
    columns = offset(lines, lane * apart)  # the largest of each column that the row's windows meet
    others = offset(columns, line)
    thinned = offset(others, line)
    out_w, stride, left, step = out[2], strides[2], before[2], steps[2]
    taken = offset(thinned, out_w)
    more = offset(taken, out_w)
    valid = min(sizes[2], line - left)
    for unit in range(lo, hi):
        above = unit // out[1]
        channel = above // out[0]
        d0 = (above - channel * out[0]) * strides[0] - before[0]
        h0 = (unit - above * out[1]) * strides[1] - before[1]
        for j in range(2 * line):
            columns[j] = lowest
        highest, following = columns, others
        for r in range(taps[0] * taps[1]):
            d = d0 + r // taps[1] * steps[0]
            h = h0 + r % taps[1] * steps[1]
            if 0 <= d < sizes[0] and 0 <= h < sizes[1]:
                row = offset(x, ((channel * sizes[0] + d) * sizes[1] + h) * sizes[2])
                take_largest(row, offset(highest, left), offset(following, left), valid)
                highest, following = following, highest
        to = offset(y, unit * out_w)
        found, following = taken, more
        for s in range(taps[2]):
            seen = offset(highest, s * step)
            if stride == 2:
                thin_run(found if s == 0 else thinned, seen, out_w)
            elif stride > 2 or s == 0:
                target = found if s == 0 else thinned
                for j in range(out_w):
                    target[j] = seen[j * stride]
            if s > 0:
                target = to if s == taps[2] - 1 else following
                take_largest(seen if stride == 1 else thinned, found, target, out_w)
                found, following = following, found
        if taps[2] == 1:
            copy_run(to, found, out_w)


def take_largest(x, y, z, count):
    """z[j] = the larger of x[j] and y[j], NaN where one of them is."""
    for j in range(count):
        v, m = x[j], y[j]
        z[j] = pick((v > m) | (v != v), v, m)


def find_places(
    x, best, at, sizes, out, z, i, deep, high, steps, begins, ends, first, last, taps
):  # fmt: skip
    """Of a row of windows the largest elements, the first such or the last NaN, and where in the
    channel x these are, less where along the row a window begins; -1 in windows without elements.
    """
    for j in range(out[2]):
        best[j] = 0  # compared, whatever comes of it
        at[j] = -1
    for d in range(deep[z], deep[out[0] + z], steps[0]):
        for h in range(high[i], high[out[1] + i], steps[1]):
            row = (d * sizes[1] + h) * sizes[2]
            if steps[3] == 0 and taps > 4 * out[2]:
                take_largest_of_runs(offset(x, row), best, at, row, steps[2], begins, ends, out[2])
                continue
            for s in range(taps):
                along = s * steps[2]
                to = along + begins[0] if steps[3] else along
                take_larger(
                    offset(x, row), best, at, row + along, to, first[s], last[s], steps[3],
                    begins, ends,
                )  # fmt: skip


@distinct
def take_larger(row, best, at, place, along, first, last, stride, begins, ends):
    """One tap of many windows, `along` elements from where they begin; stride 0: anywhere."""
    if stride == 1:
        for j in range(first, last):
            v, m, p = row[j + along], best[j], at[j]
            taken = (p < 0) | (v > m) | (v != v)
            best[j] = v if taken else m
            at[j] = place if taken else p
    elif stride == 2:
        for j in range(first, last):
            v, m, p = row[j * 2 + along], best[j], at[j]
            taken = (p < 0) | (v > m) | (v != v)
            best[j] = v if taken else m
            at[j] = place if taken else p
    else:
        for j in range(first, last):
            there = begins[j] + along < ends[j]
            v, m, p = row[begins[j] + along * there], best[j], at[j]
            taken = there & ((p < 0) | (v > m) | (v != v))
            best[j] = v if taken else m
            at[j] = place if taken else p


def take_largest_of_runs(seen, best, at, row, step, begins, ends, count):
    """The same by a few windows, one after the other."""
    for j in range(count):
        m, p = best[j], at[j]
        for k in range(begins[j], ends[j], step):
            v = seen[k]
            if p < 0 or v > m or v != v:
                m = v
                p = row + k - begins[j]
        best[j] = m
        at[j] = p


def find_rows(
    x, y, indices, lowest, found, found_apart, places, places_apart, sizes, out, deep, high, steps,
    begins, ends, first, last, taps, lo, hi, lane,
):  # fmt: skip
    best, at = offset(found, lane * found_apart), offset(places, lane * places_apart)
    for unit in range(lo, hi):
        above = unit // out[1]
        channel = above // out[0]
        find_places(
            offset(x, channel * sizes[0] * sizes[1] * sizes[2]), best, at, sizes, out,
            above - channel * out[0], unit - above * out[1], deep, high, steps, begins, ends, first,
            last, taps,
        )  # fmt: skip
        for j in range(out[2]):
            there = at[j] >= 0
            y[unit * out[2] + j] = best[j] if there else lowest
            indices[unit * out[2] + j] = at[j] + begins[j] if there else 0


def pass_to_largest(
    gy, x, gx, found, found_apart, places, places_apart, sizes, out, deep, high, steps, begins,
    ends, first, last, taps, lo, hi, lane,
):  # fmt: skip
    """A unit is a channel."""
    best, at = offset(found, lane * found_apart), offset(places, lane * places_apart)
    volume = sizes[0] * sizes[1] * sizes[2]
    for unit in range(lo, hi):
        to = offset(gx, unit * volume)
        for k in range(volume):
            to[k] = 0
        for line in range(out[0] * out[1]):
            z = line // out[1]
            find_places(
                offset(x, unit * volume), best, at, sizes, out, z, line - z * out[1], deep, high,
                steps, begins, ends, first, last, taps,
            )  # fmt: skip
            row = offset(gy, (unit * out[0] * out[1] + line) * out[2])
            for j in range(out[2]):
                if at[j] >= 0:
                    to[at[j] + begins[j]] += row[j]


# --- sums -----------------------------------------------------------------------------------------


def sums(x: Arg, y: Arg, axes: Sequence[Terms]) -> list[Launch]:
    """y, weighted sums over windows of x, divided."""
    if not y.size:
        return []
    axes, sizes, out = deep(axes, ONE), sizes_of(x), sizes_of(y)
    wide, units, taps, columns, bits = axes[2], prod(y.shape[:-1]), axes[2].taps, (), ()
    runs = wide.direct and wide.plain
    if 0 < taps <= FEW and (taps * _WIDE <= out[2] or not runs or wide.single):
        indices, weights = wide.padded(taps)
        columns, bits = tuple(indices.T.reshape(-1).tolist()), bits_of(weights.T)
    else:
        taps = _RUNS if runs else 0
    if wide.single:
        doubled = columns == tuple(j // 2 for j in range(2 * sizes[2]))
        taps = _DOUBLES if doubled else _COPIES
    lines = Scratch(x.dtype, sizes[2] + out[2] + 1 + len(bits), per_lane=True)
    plain = all(a.plain for a in axes[:2])
    fewest = int(wide.counts.min())
    divided = any(a.divided for a in axes)
    rows = prod(int(a.counts.sum()) for a in axes[:2])
    work = prod(y.shape[:2]) * (sizes[2] * rows + out[0] * out[1] * out[2] * wide.taps)
    tables = (
        axes[0].table(),
        axes[1].table(),
        wide.table(taps == 0),
        columns,
        bits,
        (taps, plain, fewest, divided),
    )
    args = (x, y, lines, lines.size, sizes, out, *tables)
    return [Launch(sum_rows, *args, units=units, grain=grain_of(units, work))]


def sum_rows(
    x, y, lines, apart, sizes, out, deep, high, wide, columns, bits, flags, lo, hi, lane
):  # fmt: skip
    """`deep`, `high`, `wide`: tables of the axes; `columns`, `bits`: along a row, element and
    weight of each tap of each window, tap by tap.
    """
    mixed = offset(lines, lane * apart)
    width, out_d, out_h, out_w, plain = sizes[2], out[0], out[1], out[2], flags[1] != 0
    counts = offset(mixed, width)
    weights = offset(counts, out_w + 1)
    for j in range(out_w):
        counts[j] = wide[2 * out_w + j]
    for k in range(flags[0] * out_w):
        weights[k] = bits_to_float(bits[k])
    above = lo // out_h
    channel = above // out_d
    z, i = above - channel * out_d, lo - above * out_h - 1
    before = (-1, 0)  # the row of x that the row of y before this one is made of alone
    for unit in range(lo, hi):
        i += 1
        if i == out_h:
            z, i = z + 1, 0
            if z == out_d:
                channel, z = channel + 1, 0
        seen, count, line = mixed, 0, -1
        for d in range(deep[z], deep[out_d + z]):
            at_d = 3 * out_d + 2 * d
            for h in range(high[i], high[out_h + i]):
                at_h = 3 * out_h + 2 * h
                line = (channel * sizes[0] + deep[at_d]) * sizes[1] + high[at_h]
                row = offset(x, line * width)
                if plain and count == 0:
                    seen = row
                else:
                    weight = bits_to_float(deep[at_d + 1]) * bits_to_float(high[at_h + 1])
                    add_row(seen, row, weight, mixed, width, count == 0, plain)
                    seen = mixed
                count += 1
        if count == 0:
            for w in range(width):
                mixed[w] = 0
        to = offset(y, unit * out_w)
        outer = deep[2 * out_d + z] * high[2 * out_h + i]
        made = (line, outer) if plain and count == 1 else (-1, 0)
        if made[0] >= 0 and made == before:
            copy_run(to, offset(to, -out_w), out_w)
        else:
            add_columns(seen, to, columns, weights, wide, out_w, flags[0], flags[2])
            if flags[3]:
                counts[out_w] = outer
                for j in range(out_w):
                    to[j] = to[j] / (counts[out_w] * counts[j])
        before = made


@distinct
def add_row(seen, row, weight, to, count, first, plain):
    if plain:
        for w in range(count):
            to[w] = seen[w] + row[w]
    elif first:
        for w in range(count):
            to[w] = row[w] * weight
    else:
        for w in range(count):
            to[w] = seen[w] + row[w] * weight


@distinct
def add_columns(seen, to, columns, weights, wide, count, taps, fewest):
    """A row of sums; `fewest`: the taps that all windows have."""
    if taps == _DOUBLES:
        for w in range(count // 2):
            v = seen[w]
            to[2 * w] = v
            to[2 * w + 1] = v
    elif taps == _COPIES:
        for j in range(count):
            to[j] = seen[columns[j]]
    elif taps == _RUNS:
        for j in range(count):
            n = wide[count + j] - wide[j]
            if n >= _LONG:
                to[j] = fixed_sum(offset(seen, wide[j]), n)
            else:
                total = np.float64(0)
                for w in range(wide[j], wide[j] + n):
                    total += seen[w]
                to[j] = total
    elif taps == 0:
        for j in range(count):
            total = 0.0
            for e in range(wide[j], wide[count + j]):
                at = 3 * count + 2 * e
                total += seen[wide[at]] * bits_to_float(wide[at + 1])
            to[j] = total
    else:
        s = 0
        while s < taps:
            step = 2 if s + 2 <= fewest else 1
            add_taps(
                seen, to, offset(columns, s * count), offset(weights, s * count), count, step, s > 0
            )
            s += step


@distinct
def add_taps(seen, to, columns, weights, count, taps, more):
    """Two taps that all windows have, or one that some have; `more`: after others."""
    others, factors = offset(columns, count), offset(weights, count)
    if taps == 2 and more:
        for j in range(count):
            to[j] += seen[columns[j]] * weights[j] + seen[others[j]] * factors[j]
    elif taps == 2:
        for j in range(count):
            to[j] = seen[columns[j]] * weights[j] + seen[others[j]] * factors[j]
    elif more:
        for j in range(count):
            to[j] += pick(weights[j] == weights[j], seen[columns[j]] * weights[j], 0.0)
    else:
        for j in range(count):
            to[j] = pick(weights[j] == weights[j], seen[columns[j]] * weights[j], 0.0)
