"""Elementwise ops that the kernel of a product or a convolution computes of each sum, before it
stores anything (`plan.epilogues`).

An op's `cuda` is given an `Unfinished` in the place of its result. A kernel that can finish sums
asks it how (`ending_of`), and calls what `finishing` makes; where none does, they are memory, and a
launch of their own finishes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

from opstep.kernels.pointwise.broadcast import strides_along
from opstep.kernels.pointwise.conversions import as_numbers, computed
from opstep.kernels.pointwise.cuda_fused import element_of
from opstep.kernels.pointwise.fused import Element
from opstep.kernels.pointwise.loops import indented
from opstep.kernels.pointwise.selection import same
from opstep.runtime.device.cuda.compiling.names import through_bf16, through_f16
from opstep.runtime.device.launch import Arg, Grid, Held, Launch, Scratch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.device.texts import from_text
from opstep.runtime.plan.epilogues import FIRST, Epilogue
from opstep.runtime.plan.fusing import Body

# Which element of an operand meets one of the result.
SAME = "same"
ONE = "one"  # the only one
CHANNEL = "channel"  # that of its place along an axis

_ROUNDED = {"bf16": through_bf16, "f16": through_f16}
AHEAD = 8  # groups of neighbours whose operands a thread reads before it waits
_WIDEST = 4  # bytes of an element, so that four neighbours are one load


class Ending(NamedTuple):
    """What kernels are compiled for. `body` finishes sums, which are its operand `place`; `ways`
    are those of its operands. `text` tells bodies apart that are equal, as 0.0 and -0.0 are.
    """

    text: str
    body: Body
    place: int
    ways: tuple[str, ...]


class Unfinished(Held):
    """The result of an op, which the ops of an epilogue follow. `arguments` are what kernels take
    for `rest`: see `finishing`. Along the axis of its channels, if operands have any, it has so
    many, of `inner` neighbours each.
    """

    __slots__ = ("arguments", "channels", "ending", "inner", "taken")

    def __init__(self, epilogue: Epilogue, operands: Sequence[Arg], results: Sequence[Arg]):
        body, place = epilogue.body, epilogue.place
        stored = body.operands[place]
        super().__init__(computed(stored), results[0].shape)
        self.stored = stored
        self.arguments = (*operands[:place], *operands[place:], *results, 0)
        self.taken = False
        self.channels = self.inner = 1
        self.ending = self._ending(body, place, operands, results)

    def _ending(self, body: Body, place: int, operands, results) -> Ending | None:
        """None where kernels cannot finish the sums."""
        given = [*operands[:place], self, *operands[place:]]
        found: list[str] = []
        axes: set[int] = set()
        for k, a in enumerate(given):
            along = strides_along(a, self.rank, k in body.per_channel)
            steps = [d for d, s in enumerate(along) if s]
            if all(d in steps for d, n in enumerate(self.shape) if n != 1):
                found.append(SAME)
            elif len(steps) <= 1:
                found.append(CHANNEL if steps else ONE)
                axes.update(steps)
            else:
                return None
        wide = any(a.stored.itemsize > _WIDEST for a in (*operands, *results))
        if wide or len(axes) > 1 or self.dtype.name != "f32":
            return None
        for axis in axes:
            self.channels, self.inner = self.shape[axis], prod(self.shape[axis + 1 :])
        return Ending(f"{body} {place}", body, place, tuple(found))

    def take(self, channels: int, inner: int) -> Ending | None:
        """How a kernel is to finish the sums, which it has to, then. None where operands have other
        channels than those that it knows the places of.
        """
        own = (self.channels, self.inner)
        if self.ending is None or (CHANNEL in self.ending.ways and own != (channels, inner)):
            return None
        self.taken = True
        return self.ending


def ending_of(y: Arg | Scratch, channels: int, inner: int) -> tuple[Ending | None, tuple]:
    """How a kernel whose result has so many channels, of `inner` neighbours each, is to finish its
    sums, and what it takes for `rest`.
    """
    ending = y.take(channels, inner) if isinstance(y, Unfinished) else None
    return ending, y.arguments if isinstance(y, Unfinished) and ending else ()


def epilogued_on_gpu(*args: Arg, epilogue: Epilogue) -> list[Grid | Launch]:
    """Launches of the op and of those that follow it."""
    launches, unfinished = _begun(args, epilogue)
    assert unfinished.taken, "a device takes the epilogues that its kernels compute"
    return launches


def is_taken(*args: Arg, epilogue: Epilogue) -> bool:
    """Whether the kernels of the op compute what follows: those for halves can."""
    first = args[0]
    return first.stored.is_half and _begun(args, epilogue)[1].taken


def _begun(args: Sequence[Arg], epilogue: Epilogue) -> tuple[list, Unfinished]:
    """The op's own launches, and what became of its result."""
    end = FIRST + len(epilogue.body.operands) - 1
    numbers = [as_numbers(a) if a else a for a in args]
    unfinished = Unfinished(epilogue, numbers[FIRST:end], numbers[end:])
    if unfinished.ending is None:
        return [], unfinished
    own = numbers[: epilogue.count]
    launches = epilogue.op.cuda(*own, unfinished, **dict(epilogue.attrs))
    return (launches if isinstance(launches, list) else [launches]), unfinished


# --- what kernels call ----------------------------------------------------------------------------


@cache
def finishing(
    ending: Ending | None, wide: int, along: bool = False, by_row: bool = False, ahead: int = AHEAD
):
    """(y, sums, at, apart, index, further, channel, onward, left, bias, column, biased, rest):
    takes `wide` neighbours from sums[at] on, adds a bias, and stores them where y points to. The
    bias is that of the first one's `column` and the next, or with `by_row` that of the channel.

    With an `ending` it stores what becomes of them, and of `ahead` groups like them, of which
    `left` are there: the next is `apart` from the one before in `sums`, `further` in the results,
    where the first is element `index`, and `onward` in channels. Neighbours are of one channel, but
    `along` them each has its own. `rest`: `Unfinished.arguments`.
    """
    groups = ahead if ending else 1
    scope: dict[str, Any] = {
        "load": Intrinsic("load", wide),
        "store": Intrinsic("store", wide),
        "rounded": same,
    }
    lines = []
    for g in range(groups):
        lines.append(f"g{g} = min({g}, left - 1)" if g else "g0 = 0")
        lines.append(f"i{g}, c{g} = index + g{g} * further, channel + g{g} * onward")
    name = f"sums of {wide}"
    element = _element(ending, name, scope) if ending else None
    for g in range(groups):  # all under way before the first is waited for
        if ending and element:
            lines += _read(ending, element, wide, along, g)
        lines.append(
            f"v{g} = "
            + (f"load(sums, at + g{g} * apart)" if wide > 1 else f"(sums[at + g{g} * apart],)")
        )
    lines.append("if biased:")
    for g in range(groups):
        places = [f"bias[c{g}]" if by_row else f"bias[column + {e}]" for e in range(wide)]
        added = ", ".join(f"v{g}[{e}] + {place}" for e, place in enumerate(places))
        lines.append(f"    v{g} = ({added},)")
    if ending and element:
        for g in range(groups):
            lines += _finished(ending, element, wide, along, g)
    for g in range(groups):
        made = _stored(ending, wide, g) if ending else [_put("y", "0", "v0[{}]", wide)]
        lines += [f"if {g} < left:", *indented(made)] if g else made
    head = "y, sums, at, apart, index, further, channel, onward, left, bias, column, biased, rest"
    text = "\n".join([f"def finish({head}):", *indented(lines)])
    return from_text(text, name, "finish", scope)


def _element(ending: Ending, name: str, scope: dict[str, Any]) -> Element:
    """What computes an element, as a function in `scope`, too."""
    element = Element(ending.body, on_gpu=True)
    scope |= element.scope
    scope["rounded"] = _ROUNDED.get(ending.body.operands[ending.place].name, same)
    scope["element"] = element_of(element, name)
    return element


def _operands(ending: Ending, element: Element) -> list[int]:
    """Those that results depend on."""
    needed = element.needed(range(len(ending.body.results)))
    return [k for k in needed if k < len(ending.ways)]


def _many(way: str, wide: int, along: bool) -> bool:
    """Whether each of the neighbours has an element of its own."""
    return wide > 1 and (way == SAME or (way == CHANNEL and along))


def _read(ending: Ending, element: Element, wide: int, along: bool, g: int) -> list[str]:
    lines = []
    for k in _operands(ending, element):
        if k == ending.place:
            continue
        way = ending.ways[k]
        source = f"rest[{k - (k > ending.place)}]"
        start = {SAME: f"i{g}", ONE: "0", CHANNEL: f"c{g}"}[way]
        many = _many(way, wide, along)
        lines.append(
            f"a{g}_{k} = " + (f"load({source}, {start})" if many else f"{source}[{start}]")
        )
    return lines


def _finished(ending: Ending, element: Element, wide: int, along: bool, g: int) -> list[str]:
    """All groups without a branch, so that a processor has something to do while it waits."""
    needed = _operands(ending, element)
    zero = f"rest[{len(ending.ways) - 1 + len(ending.body.results)}]"
    lines = []
    for e in range(wide):
        given = [
            f"rounded(v{g}[{e}])"
            if k == ending.place
            else f"a{g}_{k}[{e}]"
            if _many(ending.ways[k], wide, along)
            else f"a{g}_{k}"
            for k in needed
        ]
        lines.append(f"o{g}_{e} = element({', '.join(given)}, {zero})")
    return lines


def _stored(ending: Ending, wide: int, g: int) -> list[str]:
    others, results = len(ending.ways) - 1, len(ending.body.results)
    return [_put(f"rest[{others + q}]", f"i{g}", f"o{g}_{{}}[{q}]", wide) for q in range(results)]


def _put(to: str, at: str, value: str, wide: int) -> str:
    if wide == 1:
        return f"{to}[{at}] = {value.format(0)}"
    return f"store({to}, {at}, ({', '.join(value.format(e) for e in range(wide))}))"
