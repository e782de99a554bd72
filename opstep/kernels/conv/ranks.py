"""Ops of sequences, images and volumes: one declaration, an op for each number of axes."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill
from typing import TypeVar

from opstep.runtime.ir.op import Op

_Op = TypeVar("_Op", bound=type[Op])
_WORDS = {  # what is said of so many axes, by name
    "images": ("sequences", "images", "volumes"),
    "element": ("element", "pixel", "element"),
    "size": ("W", "H, W", "D, H, W"),
    "kernel": ("S", "R, S", "T, R, S"),
    "out": ("W'", "H', W'", "D', H', W'"),
    "places": ("w", "h, w", "d, h, w"),
    "place": ("w", "h", "d"),
    "at": ("j", "i, j", "z, i, j"),
    "taps": ("s", "r, s", "t, r, s"),
    "first": ("j", "i", "z"),
    "tap": ("s", "r", "t"),
    "side": ("left", "top", "front"),
    "more": ("", ", ...", ", ..."),
    "padding": (
        "Padding is one number, or two: left, right.",
        "",
        "Padding is three numbers, or six: front, top, left, back, bottom, right.",
    ),
}


def of_ranks(
    base: _Op, name: str, attrs: Callable[[int], str], doc: str, source: str = "",
    formula: str = "", rest: tuple[str, str, str] = ("", "", ""),
) -> tuple[_Op, _Op, _Op]:  # fmt: skip
    """Ops of one, two and three axes, `axes`. Texts are templates: of `n`, of `rest`, and of words
    for so many axes. `attrs` gives the signature behind the name.
    """

    def of_rank(n: int) -> _Op:
        words = {key: values[n - 1] for key, values in (*_WORDS.items(), ("rest", rest))}
        given = {"n": n, **words}
        called = name.format(**given)
        paragraphs = (
            fill(" ".join(text.format(**given).split()), 96) for text in doc.split("\n\n")
        )
        members = {"__doc__": "\n\n".join(paragraphs), "source": source.format(**given)}
        members |= {"formula": formula.format(**given), "__module__": base.__module__}
        members |= {"axes": n, "signature": called + attrs(n)}
        return type(base)(called, (base,), members)

    return of_rank(1), of_rank(2), of_rank(3)
