"""Plots of the workspace's pages: well-formed whatever is drawn, and inside of their frames."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opstep.trace.workspace.pages import words
from opstep.trace.workspace.pages.histograms import Bins, bars, heatmap
from opstep.trace.workspace.pages.plot import Axis, Band, Line, Panel, sparkline, stacked
from opstep.trace.workspace.pages.series import panels, plottable

values = st.one_of(st.none(), st.floats())
points = st.lists(st.tuples(st.integers(0, 10**9), values), max_size=30)


def drawn(picture) -> list[tuple[float, float]]:
    """Every point of every path and circle of a picture, which has to be well-formed XML."""
    found = []
    for element in ElementTree.fromstring(str(picture)).iter():
        path = element.get("d", "")
        if element.get("stroke-width") == "1.6" or element.get("fill-opacity"):
            pairs = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)
            assert len(pairs) == len(re.findall(r"[ML]", path))
            found += [(float(x), float(y)) for x, y in pairs]
        if element.tag.endswith("circle"):
            found.append((float(element.get("cx")), float(element.get("cy"))))
    return found


@given(points, st.booleans(), st.text(max_size=20))
@example([(0, 6e287)], True, "")
@example([(0, 1.7e308), (1, 5e-324)], True, "")
def test_any_line_is_drawn_inside_of_its_frame(line, log, title):
    title = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "", title)
    panel = Panel(title, [Line("a<b", line), Line("&", [])], log=log)
    finite = [y for _, y in line if y is not None and math.isfinite(y)]
    seen = [y for y in finite if y > 0] if log and any(y > 0 for y in finite) else finite
    places = drawn(panel.svg())
    assert len(places) == len(seen)
    for x, y in places:
        assert 0 <= x <= panel.width
        assert 0 <= y <= panel.height


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(), st.floats()), max_size=20))
def test_any_band_is_drawn_inside_of_its_frame(band):
    panel = Panel("band", [], [Band("b", band)])
    for x, y in drawn(panel.svg()):
        assert 0 <= x <= panel.width
        assert 0 <= y <= panel.height


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_ticks_are_few_and_stand_on_their_axis(found):
    axis = Axis(found, 0, 100)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 11
    assert all(-0.1 <= axis(t) <= 100.1 for t in ticks)
    assert ticks == sorted(ticks)


@pytest.mark.parametrize("low, high", [(1e-3, 2e-3), (1, 50), (1e-30, 1e30), (5e-324, 1e-300)])
def test_a_logarithmic_axis_has_ticks(low, high):
    axis = Axis([low, high], 0, 100, log=True)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 9
    assert all(-0.1 <= axis(t) <= 100.1 for t in ticks)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1000),
            st.builds(Bins, st.lists(st.integers(0, 2**40), max_size=64), st.integers(-40, 23)),
        ),
        max_size=12,
    )
)
def test_any_histograms_are_well_formed(columns):
    ElementTree.fromstring(str(heatmap("h", columns)))
    for _, bins in columns:
        if any(bins.counts):
            picture = ElementTree.fromstring(str(bars(bins)))
            path = next(e.get("d") for e in picture.iter() if e.tag.endswith("path"))
            assert path.count("M") == sum(n > 0 for n in bins.counts)
        else:
            assert bars(bins) == ""


def test_a_line_has_a_gap_where_it_has_no_value():
    line = [(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, math.inf), (5, 2.0), (6, 3.0)]
    picture = ElementTree.fromstring(str(Panel("gaps", [Line("a", line)]).svg()))
    curves = [e.get("d") for e in picture.iter() if e.get("stroke-width") == "1.6"]
    assert [c.count("L") + 1 for c in curves] == [2, 2]  # and the point alone is a dot
    assert len([e for e in picture.iter() if e.tag.endswith("circle")]) == 1


def test_marks_of_neighbours_are_drawn_as_one():
    line = Line("a", [(k, None if k in (3, 4, 5, 8) else 1.0) for k in range(10)])
    marks = [(k, f"step {k}") for k in (8, 3, 4, 5)]
    picture = ElementTree.fromstring(str(Panel("marks", [line], marks=marks).svg()))
    assert [e.text for e in picture.iter() if e.tag.endswith("title")] == [
        "step 3 … step 5",
        "step 8",
    ]
    covered = [float(e.get("width")) for e in picture.iter() if e.tag.endswith("rect")]
    assert covered[0] == pytest.approx(2 / 9 * (460 - 62 - 14) + 1, abs=0.2)
    assert covered[1] == 1


def test_a_sparkline_needs_two_values():
    assert sparkline([(0, 1.0), (1, None)]) == ""
    assert "from 1 to 2" in sparkline([(0, 1.0), (1, 2.0)])


def test_panels_stand_side_by_side():
    made = ElementTree.fromstring(str(stacked([Panel(str(k), []) for k in range(3)], 2)))
    places = [e.get("transform") for e in made if e.get("transform")]
    assert places == ["translate(0 0)", "translate(460 0)", "translate(0 190)"]
    assert (made.get("width"), made.get("height")) == ("920", "380")


def test_rows_become_series():
    rows = [
        {"step": step, "name": name, "value": step * scale, "nan": step == 2, "text": "x"}
        for step in (2, 0, 1)
        for name, scale in (("loss", 1.0), ("other", 2.0))
    ]
    rows = [row | {"nan": int(row["nan"])} for row in rows]
    assert plottable(list(rows[0]), rows)
    (panel,) = panels(list(rows[0]), rows)
    assert panel.title == "value"
    assert {line.label: line.points for line in panel.lines} == {
        "loss": [(0, 0.0), (1, 1.0), (2, 2.0)],
        "other": [(0, 0.0), (1, 2.0), (2, 4.0)],
    }
    assert panel.marks == [(2, "step 2: 2 NaN")]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 1, "value": 2.0}],  # one step
        [{"step": k, "value": "x"} for k in range(3)],  # no figure
        [{"value": 1.0}, {"value": 2.0}],  # no step
        [{"step": k, "name": f"n{k}", "value": 1.0} for k in range(30)],  # too many series
        [{"step": None, "value": 1.0}, {"step": "x", "value": 1.0}],
    ],
)
def test_other_rows_are_no_series(rows):
    assert not plottable(list(rows[0]) if rows else ["step", "value"], rows)


@pytest.mark.parametrize(
    "said, text",
    [
        (words.duration(0), "0 ns"),
        (words.duration(12_345), "12.3 µs"),
        (words.duration(3_410_000), "3.41 ms"),
        (words.duration(1.5e9), "1.5 s"),
        (words.size(640), "640 B"),
        (words.size(3 * 2**19), "1.5 MiB"),
        (words.count(12_300), "12.3 k"),
        (words.number(None), "–"),
        (words.number(12_288), "12,288"),
        (words.number(-math.inf), "-∞"),
        (words.number(math.nan), "nan"),
        (words.amount(1, "step"), "1 step"),
        (words.coded("a `b<` c"), "a <code>b&lt;</code> c"),
    ],
)
def test_figures_in_words(said, text):
    assert said == text
