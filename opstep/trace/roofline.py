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
from opstep.trace.bench import Ceilings, Measured
from opstep.trace.workspace.picture import COLOURS, DPI, FORMATS, PALE, STYLE, save, spread

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
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = gathered(measured)
    colours: dict[str, str] = dict(
        zip(dict.fromkeys(p.op.op for p in points), COLOURS, strict=False)
    )
    computing = [p for p in points if p.op.flops]
    moving = [p for p in points if not p.op.flops]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI)
        FigureCanvasAgg(figure)
        axes = figure.add_axes(_area_of(1.05, 8.9 if moving else WIDTH - 0.3))
        labels = _roof(axes, computing, roof)
        _dots(axes, computing, colours, labels)
        if moving:
            _strip(figure.add_axes(_area_of(9.85, 10.3)), moving, roof, colours)
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


Box = tuple[float, float, float, float]
"""Pixels: left, bottom, right, top."""


def _roof(axes: Any, points: list[Point], roof: Ceilings) -> list[Box]:
    """Ceilings, with what they are written along them. Gives what no other words should cover."""
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
    to_pixels = axes.transData.transform
    axes.plot([low, ridge], [low * roof.bandwidth, most], zorder=2, **_LINES)
    (x0, y0), (x1, y1) = to_pixels([(low, low * roof.bandwidth), (ridge, most)])
    slope = (y1 - y0) / (x1 - x0)
    steps = range(int(x0), int(x1), 6)
    occupied: list[Box] = [
        (x - 5, y0 + slope * (x - x0) - 5, x + 5, y0 + slope * (x - x0) + 5) for x in steps
    ]
    dots = [_around(to_pixels(_position(p)), p) for p in points]
    occupied += _along(axes, f"copy, {_scaled(roof.bandwidth, 'B/s')}", (x0, y0, x1, y1), dots)
    for dtype, rate in flat.items():
        axes.plot([rate / roof.bandwidth, high], [rate, rate], zorder=2, **_LINES)
        text = f"matrix product {dtype}, {_scaled(rate, 'FLOP/s')}".replace("  ", " ")
        (begin, y), (end, _) = to_pixels([(rate / roof.bandwidth, rate), (high, rate)])
        width = 0.072 * DPI * len(text)
        starts = [end - width - 8, begin + 12, (begin + end - width) / 2]
        boxes = [(x, y + 9, x + width, y + 9 + 0.16 * DPI) for x in starts]
        box = min(boxes, key=lambda box: sum(_overlap(box, dot) for dot in dots))
        axes.annotate(text, axes.transData.inverted().transform(box[:2]), size=9, color=ROOF)
        occupied += [(begin, y - 5, end, y + 5), box]
    axes.set_xlabel("operations for each byte read or written (FLOP/B)")
    axes.yaxis.set_major_formatter(lambda value, _: _scaled(value, "FLOP/s"))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(which="minor", length=0)
    axes.tick_params(which="major", length=3, color=PALE)
    return occupied


def _along(axes: Any, text: str, line: Box, dots: list[Box]) -> list[Box]:
    """Writes along a slanted line, above it, where the fewest dots are; gives what is covered."""
    x0, y0, x1, y1 = line
    length, width = math.dist((x0, y0), (x1, y1)), 0.072 * DPI * len(text)
    dx, dy = (x1 - x0) / length, (y1 - y0) / length

    def covered(start: float) -> list[Box]:
        offsets = [start + step for step in range(0, int(width), 8)]
        middles = [(x0 + dx * s - 18 * dy, y0 + dy * s + 18 * dx) for s in offsets]
        return [(x - 11, y - 11, x + 11, y + 11) for x, y in middles]

    starts = [part * (length - width) for part in (0.55, 0.35, 0.75, 0.15, 0.02)]
    start = min(starts, key=lambda s: sum(_overlap(a, b) for a in covered(s) for b in dots))
    at = axes.transData.inverted().transform((x0 + dx * start - 9 * dy, y0 + dy * start + 9 * dx))
    angle = math.degrees(math.atan2(dy, dx))
    axes.annotate(text, at, rotation=angle, rotation_mode="anchor", size=9, color=ROOF)
    return covered(start)


def _scaled(value: float, unit: str) -> str:
    """``51.2 TFLOP/s``"""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}"


# --- dots and their labels ------------------------------------------------------------------------


def _area(point: Point) -> float:
    return _LEAST + (_MOST - _LEAST) * math.sqrt(point.share)


def _dots(axes: Any, points: list[Point], colours: dict[str, str], labels: list[Box]) -> None:
    for point in reversed(points):  # small ones lie on large ones
        axes.scatter(
            point.op.intensity, point.op.rate, s=_area(point), color=_colour(point, colours),
            alpha=0.85, linewidth=0.8, edgecolor="white", zorder=4,
        )  # fmt: skip
    to_pixels = axes.transData.transform
    occupied = labels + [_around(to_pixels(_position(p)), p) for p in points]
    bounds = (axes.bbox.x0, axes.bbox.y0, axes.bbox.x1, axes.bbox.y1)
    for group in _groups(points, to_pixels)[:NAMED]:
        point, text = group[0], _words(group)
        at = to_pixels(_position(point))
        size = (0.0665 * DPI * len(text), 0.15 * DPI)
        spot = _free(at, size, math.sqrt(_area(point) / math.pi) * DPI / 72, occupied, bounds)
        if spot is None:
            continue
        occupied.append((spot[0], spot[1], spot[0] + size[0], spot[1] + size[1]))
        _label(axes, point, text, at, spot, size, _colour(point, colours))


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


def _around(at: Any, point: Point) -> Box:
    """The pixels of a dot."""
    r = math.sqrt(_area(point) / math.pi) * DPI / 72
    return at[0] - r, at[1] - r, at[0] + r, at[1] + r


def _free(
    at: Any, size: tuple[float, float], radius: float, occupied: list[Box], bounds: Box
) -> tuple[float, float] | None:
    """Where a label of that size has room, as near to its dot as can be: its lower left corner."""
    width, height = size
    for far in range(12):
        for turn in (0, 8, 2, 14, 6, 10, 4, 12, 1, 15, 7, 9, 3, 13, 5, 11):  # beside, above, below
            angle = turn * math.pi / 8
            reach = radius + 5 + far * 11
            x, y = at[0] + reach * math.cos(angle), at[1] + reach * math.sin(angle)
            box_x = x - width * (1 - math.cos(angle)) / 2
            box_y = y - height * (1 - math.sin(angle)) / 2
            box = (box_x, box_y, box_x + width, box_y + height)
            inside = bounds[0] + 4 < box[0] and box[2] < bounds[2] - 4
            inside = inside and bounds[1] + 4 < box[1] and box[3] < bounds[3] - 4
            if inside and not any(_overlap(box, other) for other in occupied):
                return box_x, box_y
    return None


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _label(axes: Any, point: Point, text: str, at: Any, spot: Any, size: Any, colour: str) -> None:
    """The words, and a line to the dot where they stand off."""
    x, y = spot[0], spot[1] + size[1] / 2
    near = min(max(at[0], x), x + size[0]), min(max(at[1], spot[1]), spot[1] + size[1])
    distance = math.dist(near, at) - math.sqrt(_area(point) / math.pi) * DPI / 72
    if distance > 9:
        ends = axes.transData.inverted().transform([at, near])
        axes.plot(*zip(*ends, strict=True), color=colour, linewidth=0.7, alpha=0.6, zorder=3)
    axes.annotate(
        text, axes.transData.inverted().transform((x, y)), color=_darker(colour), size=8.6,
        va="center", zorder=6, annotation_clip=False,
    )  # fmt: skip


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
        axes.scatter(
            0, point.op.bandwidth, s=_area(point), color=_colour(point, colours),
            alpha=0.85, linewidth=0.8, edgecolor="white", zorder=4,
        )  # fmt: skip
    axes.set_xticks([])
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_formatter(lambda value, _: _scaled(value, "B/s"))
    axes.tick_params(which="minor", length=0)
    axes.tick_params(which="major", length=3, color=PALE)
    axes.set_xlabel("only move data")
    named = sorted(points[:NAMED], key=lambda p: p.op.bandwidth)
    heights = [axes.transData.transform((0, p.op.bandwidth))[1] for p in named]
    spaced = spread(heights, 0.17 * DPI, axes.bbox.y0 + 8, axes.bbox.y1 - 8)
    for point, height in zip(named, spaced, strict=True):
        y = axes.transData.inverted().transform((0, height))[1]
        axes.annotate(
            f"{point.op.op}  {_percent(point.share)}", (1.15, y), size=8.6, va="center",
            color=_darker(_colour(point, colours)), annotation_clip=False,
        )  # fmt: skip
