"""Draws lines of `figures` as a picture: PNG, SVG or PDF, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opstep.runtime.ir.errors import InputError
from opstep.trace.workspace.figures import Line, Query, labels_of, unit_of

FORMATS = (".png", ".svg", ".pdf")
# Told apart by all kinds of eyes: Okabe and Ito, a little darker.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56a0d3", "#6a4c93", "#444444")
INK, PALE, GRID, BAD = "#222831", "#b9c0c7", "#e6e9ec", "#d7263d"
NAMED = len(COLOURS)  # lines that have a colour and a name
MOST_POINTS = 40  # of a picture of one step
WIDTH, HEIGHT, DPI = 10.0, 5.6, 150  # inches
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "text.parse_math": False,  # a name may have a $
    "svg.fonttype": "none",
    "svg.hashsalt": "opstep",  # the same picture has the same bytes
}


def draw(path: Path, query: Query, lines: list[Line], title: str, log: bool = False) -> None:
    """Writes the picture. Of more lines than have colours, those that reach farthest are named.

    Lines of a single step are points with their values, in the order of the program. Raises
    `InputError` where matplotlib is not there or the file cannot be written.
    """
    if log and not any(y is not None and y > 0 for line in lines for y in line.ys):
        raise InputError("no figure is above 0: a logarithmic scale shows none of them")
    unit = _in_unit(query, lines)
    with new_figure(WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        single = max(len(line.xs) for line in lines) == 1
        if single:
            _points(figure, axes, lines, log)
        else:
            _curves(figure, axes, lines, log)
        (axes.set_xlabel if single else axes.set_ylabel)(unit)
        _titles(figure, axes, title, _below(lines))
        save(figure, path)


@contextmanager
def new_figure(width: float, height: float, dpi: int = DPI, layout: Any = None) -> Iterator[Any]:
    """An empty figure of so many inches, and the style that holds while it is drawn. Raises
    `InputError` where matplotlib is not there.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install 'opstep[viewer]'"
        raise InputError("matplotlib is not there", hint=hint) from None
    with matplotlib.rc_context(STYLE):
        figure = Figure((width, height), dpi, layout=layout)
        FigureCanvasAgg(figure)
        yield figure


def save(figure: Any, path: Path) -> None:
    """Writes a figure: the same one has the same bytes each time."""
    from opstep.runtime import arrays

    arrays.replace_file(path, lambda file: write_figure(figure, file, path.suffix[1:]))


def write_figure(figure: Any, file: Any, kind: str) -> None:
    """The same, to an open file."""
    steady = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(file, format=kind, metadata=steady, dpi=DPI)


def _titles(figure: Any, axes: Any, title: str, below: str) -> None:
    height = figure.get_figheight()
    left = axes.get_position().x0
    figure.text(left, 1 - 0.30 / height, title, weight="bold", size=12, va="center")
    figure.text(left, 1 - 0.55 / height, below, color="#66707a", size=9, va="center")


def _below(lines: list[Line]) -> str:
    """The line under the title: of which runs, and what is not seen."""
    runs = list({line.run.id: line.run for line in lines}.values())
    graphs = dict.fromkeys(f"{run.graph} of {Path(run.file).name}" for run in runs)
    caption = ", ".join(list(graphs)[:3]) + f", run{'s' if len(runs) > 1 else ''} "
    caption += ", ".join(run.key for run in runs[:4]) + (", …" if len(runs) > 4 else "")
    single = max(len(line.xs) for line in lines) == 1
    if single and len(lines) > MOST_POINTS:
        caption += f"; the {MOST_POINTS} greatest of {len(lines):,}"
    elif single:
        steps = {x for line in lines for x in line.xs}
        caption += f"; step {int(min(steps))}" if len(steps) == 1 else ""
    elif len(lines) > NAMED:
        caption += f"; {len(lines):,} lines, {NAMED} of them named"
    return caption


# --- curves ---------------------------------------------------------------------------------------


def _curves(figure: Any, axes: Any, lines: list[Line], log: bool) -> None:
    """A line a tensor; its name at its end."""
    named = sorted(lines, key=_reach, reverse=True)[:NAMED]
    rest = [line for line in lines if line not in named]
    points = max(len(line.xs) for line in lines)
    mark = {"marker": "o", "markersize": 3.5} if points <= 30 else {}
    for line in rest:
        axes.plot(line.xs, _gaps(line), color=PALE, linewidth=0.7, alpha=0.7, zorder=1)
    for colour, line in zip(COLOURS, named, strict=False):
        axes.plot(line.xs, _gaps(line), color=colour, linewidth=1.7, zorder=3, **mark)
    _scale(axes, lines, log)
    mark_odd(axes, sorted({x for line in lines for x in line.odd}))
    axes.set_xlabel("step")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.grid(axis="x", visible=False)
    axes.margins(x=0.01)
    height = figure.get_figheight()
    room = min(3.0, 0.35 + 0.085 * max(len(text) for text in labels_of(named)))
    figure.subplots_adjust(
        left=0.8 / WIDTH, right=1 - room / WIDTH, top=1 - 0.8 / height, bottom=0.55 / height
    )
    _names(figure, axes, named)


def _gaps(line: Line) -> list[float]:
    return [math.nan if y is None else y for y in line.ys]


def _reach(line: Line) -> float:
    return max((abs(y) for y in line.ys if y is not None), default=-1.0)


def _scale(axes: Any, lines: list[Line], log: bool) -> None:
    """Logarithmic if wanted, or where positive figures lie far apart; plain numbers as ticks."""
    ys = [y for line in lines for y in line.ys if y is not None]
    if log or (ys and min(ys) > 0 and max(ys) / min(ys) > 1000):
        axes.set_yscale("log", nonpositive="mask")
        axes.tick_params(axis="y", which="minor", length=0)
        _plain_numbers(axes.yaxis)
    elif ys and min(ys) >= 0:
        axes.set_ylim(bottom=0, top=max(ys) * 1.06 or 1)


def _plain_numbers(axis: Any) -> None:
    """At the ticks of a logarithmic axis: powers of ten need mathtext, which is off."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain())


def mark_odd(axes: Any, xs: Sequence[float]) -> None:
    """A mark at the foot of each step where a tensor had NaNs or infinities."""
    if xs:
        axes.plot(
            xs, [0.0] * len(xs), "x", color=BAD, markersize=7, markeredgewidth=1.8,
            transform=axes.get_xaxis_transform(), clip_on=False, zorder=5,
        )  # fmt: skip
        at = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
        side = "right" if axes.transData.transform((xs[0], 0))[0] > axes.bbox.x1 - DPI else "left"
        axes.annotate("NaN or inf", (xs[0], 0), xytext=(0, 9), color=BAD, size=8.5,
                      ha=side, weight="bold", **at)  # fmt: skip


def _names(figure: Any, axes: Any, named: list[Line]) -> None:
    """Each line's name beside its end."""
    figure.canvas.draw()  # the scales are known from here on
    ends = []
    for colour, line, text in zip(COLOURS, named, labels_of(named), strict=False):
        last = [(x, y) for x, y in zip(line.xs, line.ys, strict=True) if y is not None]
        if last:
            ends.append(((1.0, fraction(axes, last[-1])[1]), colour, text))
    name_beside(axes, ends)


def name_beside(axes: Any, named: Sequence[tuple[tuple[float, float], str, str]]) -> None:
    """Names to the right of the axes, moved apart where they would lie close together, each with a
    line to what it names. `named`: places as fractions of the axes, colours, and the words.
    """
    height = axes.bbox.height
    found = sorted(named, key=lambda one: one[0][1])
    places = spread([at[1] * height for at, _, _ in found], 0.165 * DPI, 0.0, height)
    for place, (at, colour, text) in zip(places, found, strict=True):
        axes.annotate(
            text, at, xytext=(1.035, place / height),
            xycoords="axes fraction", textcoords="axes fraction",
            color=colour, va="center", size=9, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6,
                        "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)},
        )  # fmt: skip


def fraction(axes: Any, point: tuple[float, float]) -> tuple[float, float]:
    """A point of the data as fractions of the axes."""
    return tuple(axes.transAxes.inverted().transform(axes.transData.transform(point)))


def spread(positions: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones (which go up) with at least `gap` between them: those that would
    overlap stand together around their middle. Inside of low..high, if there is room.
    """
    groups: list[list[float]] = []  # middle, how many
    for position in positions:
        groups.append([position, 1])
        while len(groups) > 1 and _overlap(groups[-2], groups[-1], gap):
            (a, n), (b, m) = groups[-2:]
            groups[-2:] = [[(a * n + b * m) / (n + m), n + m]]
    found = [m + (k - (n - 1) / 2) * gap for m, n in groups for k in range(int(n))]
    for k in range(len(found)):
        found[k] = max(found[k], low + k * gap)
    for k in range(len(found)):
        found[-1 - k] = min(found[-1 - k], high - k * gap)
    return found


def _overlap(below: list[float], above: list[float], gap: float) -> bool:
    return above[0] - below[0] < (above[1] + below[1]) / 2 * gap


def _in_unit(query: Query, lines: list[Line]) -> str:
    """The name of the figures, with their unit; times are brought into a handy one."""
    unit = unit_of(query)
    if unit != "seconds":
        return f"{query.column} ({unit})" if unit else query.column
    longest = max(map(_reach, lines))
    factor, unit = (1e6, "µs") if longest < 1e-3 else (1e3, "ms") if longest < 1 else (1, "s")
    for line in lines:
        line.ys = [None if y is None else y * factor for y in line.ys]
    return f"{unit} {'an execution' if query.table == 'executions' else 'a step'}"


# --- points ---------------------------------------------------------------------------------------


def _points(figure: Any, axes: Any, lines: list[Line], log: bool) -> None:
    """One step: a point a tensor with its value, from the first op at the top."""
    greatest = sorted(lines, key=_reach, reverse=True)[:MOST_POINTS]
    shown = [line for line in lines if line in greatest]
    ys = [0.0 if line.ys[0] is None else line.ys[0] for line in shown]
    colours = [BAD if line.odd else COLOURS[0] for line in shown]
    positions = range(len(shown))
    height = 1.45 + 0.23 * len(shown)
    figure.set_figheight(height)
    axes.scatter(ys, positions, s=42, color=colours, zorder=3)
    if log or (min(ys) > 0 and max(ys) / min(ys) > 1000):
        axes.set_xscale("log", nonpositive="mask")
        _plain_numbers(axes.xaxis)
    labels = labels_of(shown)
    axes.set_yticks(positions, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.margins(x=0.15)
    for position, y, line in zip(positions, ys, shown, strict=True):
        text = f"{y:.4g}" + (" and NaN or inf" if line.odd else "")
        axes.annotate(text, (y, position), xytext=(7, 0), size=8.5,
                      textcoords="offset points", va="center", ha="left",
                      color=BAD if line.odd else INK)  # fmt: skip
    left = 0.4 + 0.085 * max(map(len, labels))
    figure.subplots_adjust(
        left=left / WIDTH, right=1 - 0.5 / WIDTH, top=1 - 0.8 / height, bottom=0.5 / height
    )
