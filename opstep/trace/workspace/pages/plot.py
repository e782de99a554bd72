"""Small plots as SVG, drawn here: the pages load nothing from anywhere.

Points are (x, y) with y None where there is none: a line has a gap there. What is not finite is
left out; marks show where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

from markupsafe import Markup, escape

from opstep.trace.workspace.pages.words import number

COLOURS = ("#276890", "#d9822b", "#4a9a5b", "#b0405c", "#7a5ea8", "#5b8f8f", "#8a6d3b", "#c06fa0")
BAD = "#d0021b"
INK, GRID, PALE = "#5a6472", "#e4e8ec", "#7fa3bd"
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 26, 26  # of a panel's frame, px
FAR = 1e300  # beyond it differences overflow
Point = tuple[float, "float | None"]


class Line(NamedTuple):
    label: str
    points: Sequence[Point]


class Band(NamedTuple):
    """The area between two curves: (x, low, high)."""

    label: str
    points: Sequence[tuple[float, float, float]]


@dataclass
class Panel:
    """One plot: lines and bands over the same x, and marks at x where something is wrong."""

    title: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    marks: Sequence[tuple[float, str]] = ()
    log: bool = False
    show: Callable[[float], str] = field(default=number)
    width: int = 460
    height: int = 190

    def svg(self) -> Markup:
        """The plot as an <svg> element."""
        xs = [x for line in self.lines for x, _ in line.points if sound(x)]
        xs += [x for band in self.bands for x, _, _ in band.points] + [x for x, _ in self.marks]
        ys = [y for line in self.lines for _, y in line.points if sound(y)]
        ys += [y for band in self.bands for _, lo, hi in band.points for y in (lo, hi) if sound(y)]
        log = self.log and any(y > 0 for y in ys)
        if log:
            ys = [y for y in ys if y > 0]
        x = Axis(xs, LEFT, self.width - RIGHT)
        y = Axis(ys, self.height - BOTTOM, TOP, log)
        parts = [self._frame(x, y)]
        for k, band in enumerate(self.bands):
            parts += _area(band, x, y, COLOURS[0], 0.12 + 0.12 * k)
        for k, line in enumerate(self.lines):
            parts += _curve(line, x, y, COLOURS[k % len(COLOURS)])
        parts += [self._marked(x, marks) for marks in _neighbours(self.marks, xs)]
        if not ys:
            middle = f'x="{self.width / 2:.0f}" y="{self.height / 2:.0f}" text-anchor="middle"'
            parts.append(Markup(f"<text {middle}>no finite value</text>"))
        return picture(self.width, self.height, Markup("").join(parts), self.title)

    def _frame(self, x: Axis, y: Axis) -> Markup:
        parts = []
        for value in y.ticks():
            at = f"{y(value):.1f}"
            parts.append(
                f'<path d="M{LEFT} {at}H{self.width - RIGHT}" stroke="{GRID}"/>'
                f'<text x="{LEFT - 6}" y="{at}" dy="4" text-anchor="end">'
                f"{escape(self.show(value))}</text>"
            )
        steps = step_labels(x, self.height)
        return Markup("".join(parts)) + steps + heading(self.title) + self._legend()

    def _legend(self) -> Markup:
        """Labels of the lines and bands, right above the frame; none where one line says it all."""
        named = [(line.label, COLOURS[k % len(COLOURS)]) for k, line in enumerate(self.lines)]
        named += [(band.label, PALE) for band in self.bands]
        if len(named) < 2:
            return Markup("")
        labels = [
            f'<tspan fill="{colour}">{escape(clipped(label, 28))}</tspan>'
            for label, colour in named[:6]
        ]
        more = [f"<tspan>+{len(named) - 6}</tspan>"] if len(named) > 6 else []
        text = "<tspan>  </tspan>".join(labels + more)
        at = f'x="{self.width - RIGHT}" y="16" text-anchor="end" xml:space="preserve"'
        return Markup(f"<text {at}>{text}</text>")

    def _marked(self, x: Axis, marks: Sequence[tuple[float, str]]) -> Markup:
        """Marks at neighbouring places: a dot at the first, and what they cover in red."""
        first, last = x(marks[0][0]), x(marks[-1][0])
        what = marks[0][1] if len(marks) == 1 else f"{marks[0][1]} … {marks[-1][1]}"
        tall = self.height - BOTTOM - TOP
        return Markup(
            f'<rect x="{first - 0.5:.1f}" y="{TOP}" width="{last - first + 1:.1f}" '
            f'height="{tall}" fill="{BAD}" opacity="0.14"/>'
            f'<circle cx="{first:.1f}" cy="{TOP}" r="3.5" fill="{BAD}">'
            f"<title>{escape(what)}</title></circle>"
        )


def heading(title: str) -> Markup:
    return Markup(
        f'<text x="{LEFT}" y="16" font-weight="600" fill="#111a35">{escape(title)}</text>'
    )


def step_labels(x: Axis, height: int) -> Markup:
    """Whole numbers under the frame."""
    labels = [
        f'<text x="{x(v):.1f}" y="{height - 8}" text-anchor="middle">{int(v):,}</text>'
        for v in x.ticks()
        if v == int(v)
    ]
    return Markup("".join(labels))


class Axis:
    """Maps values to px, with ticks at round values."""

    def __init__(self, values: Iterable[float], start: float, end: float, log: bool = False):
        self.log, self.start, self.end = log, start, end
        found = [self._flat(v) for v in values]
        self.low, self.high = (min(found), max(found)) if found else (0.0, 1.0)
        most = max(abs(self.low), abs(self.high))
        if self.high - self.low <= most * 1e-9 + 1e-290:
            margin = most * 0.1 if most > 1e-280 else 0.5
            self.high += margin
            self.low -= margin if most > 1e-280 or log else 0  # all zeros stand on the ground
        self.scale = (end - start) / (self.high - self.low)

    def __call__(self, value: float) -> float:
        return self.start + (self._flat(value) - self.low) * self.scale

    def _flat(self, value: float) -> float:
        value = max(-FAR, min(FAR, value))
        return math.log10(max(value, 5e-324)) if self.log else value

    def ticks(self, most: int = 5) -> list[float]:
        """A few round values inside the axis."""
        if self.log:
            return self._decades()
        span = self.high - self.low
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next(power * m for m in (1, 2, 5, 10, 20) if span / (power * m) <= most)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [k * step for k in range(first, min(last, first + 2 * most) + 1)]

    def _decades(self) -> list[float]:
        """Powers of ten; with few of them also 2 and 5 times each."""
        first, last = math.floor(self.low), math.ceil(self.high)
        apart = max(1, -(-(last - first) // 6))
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        powers = range(first, min(last, 307) + 1, apart)  # ten to the 308th, five times, is no f64
        values = [m * 10.0**k for k in powers for m in factors]
        return [v for v in values if v > 0 and self.low <= math.log10(v) <= self.high]


def sound(value: float | None) -> TypeGuard[float]:
    """Whether it can be drawn."""
    return value is not None and math.isfinite(value)


def clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _curve(line: Line, x: Axis, y: Axis, colour: str) -> list[Markup]:
    """The line, in as many pieces as it has; points that stand alone as dots."""
    parts = []
    for piece in _pieces(line.points, lambda p: sound(p[1]) and not (y.log and p[1] <= 0)):
        where = [f"{x(a):.1f} {y(b or 0.0):.1f}" for a, b in piece]
        if len(where) == 1:
            cx, cy = where[0].split()
            parts.append(Markup(f'<circle cx="{cx}" cy="{cy}" r="2.5" fill="{colour}"/>'))
        else:
            path = "M" + "L".join(where)
            parts.append(
                Markup(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
            )
    return parts


def _area(band: Band, x: Axis, y: Axis, colour: str, opacity: float) -> list[Markup]:
    parts = []
    for piece in _pieces(band.points, lambda p: sound(p[1]) and sound(p[2])):
        there = [f"{x(a):.1f} {y(high):.1f}" for a, _, high in piece]
        back = [f"{x(a):.1f} {y(low):.1f}" for a, low, _ in reversed(piece)]
        path = "M" + "L".join(there + back) + "Z"
        parts.append(Markup(f'<path d="{path}" fill="{colour}" fill-opacity="{opacity:.2f}"/>'))
    return parts


def _neighbours(marks: Sequence[tuple[float, str]], xs: Sequence[float]) -> list[list[Any]]:
    """The marks in groups with no other place between them."""
    places = {x: k for k, x in enumerate(sorted(set(xs)))}
    groups: list[list[Any]] = []
    for mark in sorted(marks):
        if groups and places[mark[0]] - places[groups[-1][-1][0]] <= 1:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return groups


def _pieces(points: Sequence[Any], drawn: Callable[[Any], bool]) -> list[list[Any]]:
    """Runs of points that can be drawn."""
    pieces: list[list[Any]] = [[]]
    for point in points:
        if drawn(point):
            pieces[-1].append(point)
        elif pieces[-1]:
            pieces.append([])
    return [p for p in pieces if p]


def picture(width: int, height: int, body: Markup, label: str) -> Markup:
    font = 'font-family="Helvetica Neue, Arial, sans-serif" font-size="11"'
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" {font} '
        f'fill="{INK}">{body}</svg>'
    )


def stacked(panels: Sequence[Panel], columns: int = 1) -> Markup:
    """Panels of one size beside and under one another, as one picture."""
    parts = []
    wide = max((p.width for p in panels), default=1)
    tall = max((p.height for p in panels), default=1)
    for k, panel in enumerate(panels):
        place = f"translate({k % columns * wide} {k // columns * tall})"
        parts.append(Markup(f'<g transform="{place}">') + panel.svg() + Markup("</g>"))
    width = wide * max(1, min(columns, len(panels)))
    height = tall * max(1, -(-len(panels) // columns))
    return picture(width, height, Markup("").join(parts), "plot")


def sparkline(points: Sequence[Point], width: int = 110, height: int = 24) -> Markup:
    """A line without axes, for tables."""
    ys = [y for _, y in points if sound(y)]
    if len(ys) < 2:
        return Markup("")
    x = Axis([a for a, _ in points], 1, width - 1)
    y = Axis([v for v in ys if v is not None], height - 2, 2)
    label = f"from {number(ys[0])} to {number(ys[-1])}"
    body = Markup("").join(_curve(Line("", points), x, y, COLOURS[0]))
    return picture(width, height, body + Markup(f"<title>{label}</title>"), label)
