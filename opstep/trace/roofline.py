"""Draws the roofline of a device and the ops of a graph under it (Williams, Waterman and Patterson
2009): operations a second by operations for each byte, both logarithmic.

Ops that compute nothing have no place there; they stand in a strip beside it, by their bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Wording
from opstep.trace.bench import Ceilings, Measured, scaled
from opstep.trace.workspace.picture import (
    COLOURS,
    DPI,
    FORMATS,
    PALE,
    fraction,
    name_beside,
    new_figure,
    save,
)

WIDTH, HEIGHT = 12.0, 6.8  # inches
QUIET, ROOF, UNDER = "#66707a", "#222831", "#f3f6f9"
NAMED = 16  # points that have a label: those that take the most time
_CLOSE = 0.16 * DPI  # pixels between dots that share a label
_MOST, _LEAST = 520.0, 26.0  # area of a dot in points², by its share of the time
_LINES = {"linewidth": 1.6, "color": ROOF, "solid_capstyle": "round"}


class Point(NamedTuple):
    """Ops of one kind, type and speed, as one dot."""

    op: Measured
    count: int
    share: float  # of the time of all ops

    @property
    def shape(self) -> str:
        return self.op.type.partition("]")[0].partition("[")[2].replace(", ", "·") or "scalar"


def draw(path: Path, measured: Sequence[Measured], roof: Ceilings, title: str, below: str) -> None:
    """Writes the picture. Raises `InputError` where matplotlib is not there or the file cannot be
    written.
    """
    check(path)
    points = gathered(measured)
    colours: dict[str, str] = dict(
        zip(dict.fromkeys(p.op.op for p in points), COLOURS, strict=False)
    )
    computing = [p for p in points if p.op.flops]
    moving = [p for p in points if not p.op.flops]
    with new_figure(WIDTH, HEIGHT) as figure:
        axes = figure.add_axes(_area_of(1.05, 6.9 if moving else 9.2))
        _roof(axes, computing, roof)
        _dots(axes, computing, colours)
        if moving:
            _strip(figure.add_axes(_area_of(10.05, 10.4)), moving, roof, colours)
        figure.text(1.05 / WIDTH, 1 - 0.32 / HEIGHT, title, weight="bold", size=13, va="center")
        if any(op.bandwidth > 1.05 * roof.bandwidth for op in measured):
            below += "; above the copy: operands were in a cache"
        if any((roof.shares(op)[1] or 0) > 1.15 for op in measured):
            below += "; above the product: fewer operations (FFT)"
        figure.text(1.05 / WIDTH, 1 - 0.6 / HEIGHT, below, color=QUIET, size=9.5, va="center")
        save(figure, path)


def _area_of(left: float, right: float) -> tuple[float, float, float, float]:
    """A picture's part, from these inches on to those, as matplotlib counts."""
    bottom, top = 0.62, HEIGHT - 0.95
    return left / WIDTH, bottom / HEIGHT, (right - left) / WIDTH, (top - bottom) / HEIGHT


def check(path: Path) -> None:
    """Raises `InputError` where no picture can be made there."""
    if path.suffix not in FORMATS:
        argument = Argument("roofline", str(path))
        raise InputError(Wording(argument, ": write to a .png, .svg or .pdf file"))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        hint = "pip install 'opstep[viewer]'"
        raise InputError("matplotlib, which draws the roofline, is not there", hint=hint) from None


def gathered(measured: Sequence[Measured]) -> list[Point]:
    """Dots, those that take the most time first. Ops of one kind and type, as layers of a network
    often are, make one dot where they are about as fast.
    """
    groups: dict[tuple, list[Measured]] = {}
    for op in measured:
        speed = round(2 * math.log2(op.seconds))  # within some 40 %
        groups.setdefault((op.op, op.type, op.nbytes, op.flops, speed), []).append(op)
    total = sum(op.a_step for op in measured) or 1.0
    points = []
    for ops in groups.values():
        middle = sorted(ops, key=lambda op: op.seconds)[len(ops) // 2]
        points.append(Point(middle, len(ops), sum(op.a_step for op in ops) / total))
    return sorted(points, key=lambda p: -p.share)


# --- the roof -------------------------------------------------------------------------------------


def _roof(axes: Any, points: list[Point], roof: Ceilings) -> None:
    """Ceilings, with what they are written along them."""
    flat = roof.arithmetic or {"": max((p.op.rate for p in points), default=1e9)}
    most = max(flat.values())
    ridge = most / roof.bandwidth
    xs = [p.op.intensity for p in points] or [ridge]
    ys = [p.op.rate for p in points] or [most]
    low, high = min(*xs, ridge / 30) / 2.2, max(*xs, ridge * 6) * 2.5
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min(*ys, low * roof.bandwidth) / 2.5, max(*ys, most) * 3)
    axes.fill_between(
        [low, ridge, high], [low * roof.bandwidth, most, most], axes.get_ylim()[0],
        color=UNDER, zorder=0, linewidth=0,
    )  # fmt: skip
    slope = [(low, low * roof.bandwidth), (ridge, most)]
    axes.plot(*zip(*slope, strict=True), zorder=2, **_LINES)
    (x0, y0), (x1, y1) = axes.transData.transform(slope)
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    middle = axes.transData.inverted().transform(((x0 + x1) / 2, (y0 + y1) / 2))
    above = {"textcoords": "offset points", "size": 9, "color": ROOF}
    axes.annotate(f"copy, {scaled(roof.bandwidth, 'B/s')}", middle, (-9, 7), rotation=angle,
                  rotation_mode="anchor", ha="center", **above)  # fmt: skip
    for dtype, rate in flat.items():
        axes.plot([rate / roof.bandwidth, high], [rate, rate], zorder=2, **_LINES)
        text = f"matrix product {dtype}, {scaled(rate, 'FLOP/s')}".replace("  ", " ")
        axes.annotate(text, (high, rate), (-6, 5), ha="right", **above)
    axes.set_xlabel("operations for each byte read or written (FLOP/B)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _rates(axes, "FLOP/s")


def _rates(axes: Any, unit: str) -> None:
    """A logarithmic axis of so much a second."""
    axes.yaxis.set_major_formatter(lambda value, _: scaled(value, unit))
    axes.tick_params(which="minor", length=0)
    axes.tick_params(which="major", length=3, color=PALE)


# --- dots and their labels ------------------------------------------------------------------------


def _dots(axes: Any, points: list[Point], colours: dict[str, str]) -> None:
    for point in reversed(points):  # small ones lie on large ones
        _dot(axes, _position(point), point, colours)
    firsts = [(g[0], _words(g)) for g in _groups(points, axes.transData.transform)[:NAMED]]
    _name(axes, [(_position(point), point, words) for point, words in firsts], colours)


def _name(axes: Any, named: list[tuple[Any, Point, str]], colours: dict[str, str]) -> None:
    """Words beside the axes, with lines to the dots at these places."""
    shown = [(fraction(axes, at), _darker(_colour(p, colours)), words) for at, p, words in named]
    name_beside(axes, shown)


def _dot(axes: Any, at: tuple[float, float], point: Point, colours: dict[str, str]) -> None:
    area = _LEAST + (_MOST - _LEAST) * math.sqrt(point.share)
    axes.scatter(
        *at, s=area, color=_colour(point, colours), alpha=0.85, linewidth=0.8, edgecolor="white",
        zorder=4,
    )  # fmt: skip


def _groups(points: list[Point], to_pixels: Any) -> list[list[Point]]:
    """Dots of one kind of op that all but cover each other, under one label."""
    groups: list[list[Point]] = []
    for point in points:
        at = to_pixels(_position(point))
        for group in groups:
            first = group[0]
            if first.op.op == point.op.op and math.dist(at, to_pixels(_position(first))) < _CLOSE:
                group.append(point)
                break
        else:
            groups.append([point])
    return groups


def _words(group: list[Point]) -> str:
    """``conv2d  64·256·26·26  33 %``"""
    count = sum(p.count for p in group)
    shapes = {p.shape for p in group}
    times = f" ×{count}" if count > 1 else ""
    shape = f"  {shapes.pop()}" if len(shapes) == 1 else ""
    return f"{group[0].op.op}{times}{shape}  {_percent(sum(p.share for p in group))}"


def _position(point: Point) -> tuple[float, float]:
    return point.op.intensity, point.op.rate


def _colour(point: Point, colours: dict[str, str]) -> str:
    return colours.get(point.op.op, QUIET)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "<1 %"


def _darker(colour: str) -> str:
    """For words, which are thinner than dots."""
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{int(0.8 * part):02x}" for part in parts)


# --- ops that only move data ----------------------------------------------------------------------


def _strip(axes: Any, points: list[Point], roof: Ceilings, colours: dict[str, str]) -> None:
    """Bandwidths, below that of a copy."""
    axes.set_yscale("log")
    axes.set_xlim(-1, 1)
    slowest = min(p.op.bandwidth for p in points)
    fastest = max(*(p.op.bandwidth for p in points), roof.bandwidth)
    axes.set_ylim(min(slowest, roof.bandwidth / 30) / 2, fastest * 2)
    axes.fill_between([-1, 1], roof.bandwidth, axes.get_ylim()[0], color=UNDER, linewidth=0)
    axes.plot([-1, 1], [roof.bandwidth] * 2, zorder=2, **_LINES)
    for point in reversed(points):
        _dot(axes, (0, point.op.bandwidth), point, colours)
    axes.set_xticks([])
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("only move data")
    _rates(axes, "B/s")
    named = [((0, p.op.bandwidth), p, f"{p.op.op}  {_percent(p.share)}") for p in points[:NAMED]]
    _name(axes, named, colours)
