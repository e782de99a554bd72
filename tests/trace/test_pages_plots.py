"""Plots of the workspace's pages: what is drawn of rows with a step, whatever they hold."""

from __future__ import annotations

import math
import sys
from xml.etree import ElementTree

import pytest

from opstep.runtime.ir.amounts import size
from opstep.trace.workspace.pages import cells
from opstep.trace.workspace.pages.plots import plottable, svg

SVG = "{http://www.w3.org/2000/svg}"
ODD = [None, math.nan, math.inf, -math.inf, sys.float_info.max, -sys.float_info.max, 5e-324, 0]


def texts(columns, rows) -> list[str]:
    """What is written in a picture, which has to be well-formed."""
    drawn = ElementTree.fromstring(svg(columns, rows))
    return [t.text for t in drawn.iter(f"{SVG}text")]


def test_rows_become_series():
    columns = ["step", "name", "value"]
    rows = [{"step": k % 3, "name": "ab"[k // 3], "value": k} for k in range(6)]
    assert plottable(columns, rows)
    assert {"value", "a", "b", "step"} - {"step"} <= set(texts(columns, rows))


def test_a_tensors_figures_share_a_panel():
    columns = ["step", "mean", "std", "min", "max", "l2"]
    rows = [dict(zip(columns, (k, k, 1, k - 2, k + 2, 9), strict=True)) for k in range(3)]
    written = texts(columns, rows)
    assert {"mean", "± std", "min to max", "l2"} <= set(written)
    assert "std" not in written


def test_histograms_become_a_map():
    columns = ["step", "absmax", "histogram", "lowest"]
    rows = [{"step": k, "absmax": 8, "histogram": "[1, 0, 3]", "lowest": k} for k in range(4)]
    rows += [{"step": 3, "absmax": 8, "histogram": "[2]", "lowest": 20}]  # in a loop's next turn
    rows += [{"step": 4, "absmax": 0, "histogram": None, "lowest": None}]
    written = texts(columns, rows)
    assert "elements by magnitude" in written and "2^20" in written


@pytest.mark.parametrize("other", ODD)
def test_any_number_is_drawn(other):
    columns = ["step", "value", "mean", "std", "min", "max"]
    rows = [{"step": k, **dict.fromkeys(columns[1:], v)} for k, v in enumerate([1.5, other])]
    assert "value" in texts(columns, rows)


def test_names_are_no_formulas():
    columns = ["step", "name", "value"]
    rows = [{"step": k % 2, "name": n, "value": k} for k in range(2) for n in ("$x^", "_a<b&")]
    assert {"$x^", "a<b&"} <= set(texts(columns, rows))


def test_steps_with_nans_are_marked():
    rows = [{"step": k, "value": 1.0 * k, "nan": int(k == 2)} for k in range(4)]
    assert "NaN or inf" in texts(["step", "value", "nan"], rows)
    assert "NaN or inf" not in texts(["step", "value"], rows)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 1, "value": 2}],
        [{"step": "a", "value": 2}, {"step": "b", "value": 2}],
        [{"step": k, "value": "text"} for k in range(3)],
        [{"step": k % 3, "name": str(k), "value": 1} for k in range(30)],
    ],
)
def test_other_rows_are_not_plotted(rows):
    assert not plottable(["step", "name", "value"] if rows and "name" in rows[0] else
                         ["step", "value"], rows)  # fmt: skip


@pytest.mark.parametrize(
    "said, text",
    [
        (cells.duration(0), "0 ns"),
        (cells.duration(12_345), "12.3 µs"),
        (cells.duration(3_410_000), "3.41 ms"),
        (cells.duration(1.5e9), "1.5 s"),
        (size(640), "640 B"),
        (size(3 * 2**19), "1.5 MiB"),
        (cells.count(812), "812"),
        (cells.count(12_300), "12.3 k"),
        (cells.count(5.1e16), "51,000.0 T"),
        (cells.number(None), "–"),
        (cells.number(12_288), "12,288"),
        (cells.number(-math.inf), "-∞"),
        (cells.number(math.nan), "nan"),
        (cells.coded("a `b<` c"), "a <code>b&lt;</code> c"),
    ],
)
def test_figures_in_words(said, text):
    assert said == text
