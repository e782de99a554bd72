"""Attributes that do not fit the operands: an axis that is not there, a shape of another size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from opstep.lsp.fixes.fix import Edit, Fix, MessageSite, makes
from opstep.runtime.ir.graph import Apply, Attr, Name
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import TensorType

_AXES = ("axis", "axes", "start", "end")
_MOST = 3  # of the axes that would do


@makes("operands")
def axis(site: MessageSite) -> Iterator[Fix]:
    """Each axis with which the statement is right, the nearest to what is written first."""
    s = site.statement
    for attr in s.attrs if isinstance(s, Apply) else ():
        if attr.name.text in _AXES and isinstance(s, Apply):
            found = (v for v in _other_axes(site, s, attr) if _fits(site, s, attr, v) is not None)
            for value in islice(found, _MOST):
                title = f"Change {attr.name.text} to {_text(value)}{_size(site, s, value)}"
                yield Fix(title, (Edit(*attr.span, _text(value)),), likely=attr.span == site.span)


def _other_axes(site: MessageSite, s: Apply, attr: Attr) -> Iterator[Any]:
    """The value with one axis in place of another; of a list, with one of them."""
    t = _first_type(site, s)
    ranks = range(t.rank if t else 0)
    if type(attr.value) is int:
        yield from _near(attr.value, ranks)
    elif isinstance(attr.value, tuple):
        for k, one in enumerate(attr.value):
            if type(one) is int:
                for other in _near(one, ranks):
                    yield (*attr.value[:k], other, *attr.value[k + 1 :])


def _near(axis: int, ranks: range) -> list[int]:
    """The other axes, counted from the end where this one is."""
    from_end = [a - len(ranks) for a in ranks] if axis < 0 else list(ranks)
    return sorted((a for a in from_end if a != axis), key=lambda a: abs(a - axis))


def _size(site: MessageSite, s: Apply, value: Any) -> str:
    t = _first_type(site, s)
    return f", of size {t.shape[value]}" if t and type(value) is int else ""


@makes("operands")
def shape(site: MessageSite) -> Iterator[Fix]:
    """Of reshape: the shape with one of its sizes such that all elements have a place."""
    s = site.statement
    if not isinstance(s, Apply) or s.callee.text != "reshape":
        return
    attr = next((a for a in s.attrs if a.name.text == "shape"), None)
    if attr is None or not isinstance(attr.value, tuple):
        return
    offered: list[str] = []  # the last size is the one that is wrong most often
    for k in reversed(range(len(attr.value))):
        others = [d for j, d in enumerate(attr.value) if j != k]
        if -1 in others:
            continue
        found = _fits(site, s, attr, (*attr.value[:k], -1, *attr.value[k + 1 :]))
        if found is not None:
            offered.append(f"[{', '.join(map(str, found[0].shape))}]")
    flat = _fits(site, s, attr, (-1,))
    if not offered and flat is not None:
        offered.append("[-1]")
    for number, text in enumerate(dict.fromkeys(offered)):
        yield Fix(f"Change shape to {text}", (Edit(*attr.span, text),), likely=number == 0)


def _fits(
    site: MessageSite, s: Apply, attr: Attr, value: Any
) -> tuple[TensorType, ...] | None:  # fmt: skip
    """The results with another value of an attribute; None where that does not fit, either."""
    attrs = tuple(replace(a, value=value) if a is attr else a for a in s.attrs)
    return site.tried(replace(s, attrs=attrs), {}) if s.callee.text in OPS else None


def _first_type(site: MessageSite, s: Apply) -> TensorType | None:
    first = next((o for o in s.operands if isinstance(o, Name)), None)
    return site.types.get(first.text) if first else None


def _text(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
