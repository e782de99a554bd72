"""Figures as people read them."""

from __future__ import annotations

import math
import re

from markupsafe import Markup, escape


def duration(ns: float) -> str:
    """``812 ns``, ``12.3 µs``, ``3.41 ms``, ``1.2 s``"""
    for limit, scale, unit in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if abs(ns) < limit:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns / 1e9:,.3g} s" if abs(ns) < 1e12 else f"{ns / 1e9:,.0f} s"


def count(n: float) -> str:
    """``812``, ``12.3 k``, ``3.4 M``: for amounts of work, such as FLOPs."""
    if abs(n) < 1000:
        return f"{n:,.0f}"
    power = min(4, int(math.log10(abs(n))) // 3)
    return f"{n / 1000**power:,.1f}{(' k', ' M', ' G', ' T')[power - 1]}"


def number(x: float | int | None) -> str:
    """``0.01234``, ``-3.1e-07``, ``12,288``, ``∞``; None as a dash."""
    if x is None:
        return "–"
    if isinstance(x, int):
        return f"{x:,}" if abs(x) < 10**15 else f"{x:.4g}"
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    return f"{x:.4g}"


def coded(text: str) -> Markup:
    """A text in which what stands in `backticks` is code."""
    parts = re.split(r"`([^`]*)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else escape(part)
        for k, part in enumerate(parts)
    )
