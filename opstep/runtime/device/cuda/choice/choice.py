"""Which way of running an op is taken: a kernel of ours, a library's, or what was fastest when all
were tried.

The choice depends on the op, its types and the table of the process (`tuning`), never on the plan:
async and debug mode run the same kernels, and give the same bits. Where nothing is known of a large
op, the likely ways are timed before it runs for the first time, and what is taken then is kept.

A convolution that can have its images with channels last (`plan.layouts`) is judged by the time
that it takes so: in a network it hardly ever stands alone. One with channels first would part the
one behind it from the one before it, so that images are turned once more. A library's way with
channels last is one way, whoever stands beside it: alone it turns images for itself, and the bits
are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol

from opstep.runtime.device import source
from opstep.runtime.device.cuda.choice.tuning import Times, TuningTable, key_of
from opstep.runtime.device.cuda.compiling.compiler import CUDA
from opstep.runtime.device.cuda.lowering import Lowering
from opstep.runtime.device.cuda.vendor.libraries import INSTALL, Refused, Unavailable, missing
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.plan.epilogues import Epilogue
from opstep.runtime.plan.layouts import LAST, Layout, convolving, with_channels_last
from opstep.runtime.plan.plan import Step

OURS = "numba"
OURS_LAST = f"{OURS}{LAST}"  # a time of ours that is known, not a way that is taken for an op
# What ours may take at most where channels are not last after all: times the best, or so many
# microseconds more.
APART = 1.25
APART_US = 4.0
ALONE = 2.0  # the same of a library's way, with the copies that it makes alone
TURN_US = 2.0  # microseconds that it takes to turn images, besides
BYTES_TURNED = 1_500_000  # of them in a microsecond
LEAST_US = 0.1  # of any way
WORTH_A_TRIAL = 1 << 26  # floating-point operations: what has fewer takes a few microseconds
WORTH_BETWEEN = 1 << 22  # those of a convolution of halves
WORTH_READING = 1 << 22  # bytes of an operand

Types = tuple[TensorType | None, ...]
"""Of a step's operands, as they are stored (None: absent), then of its results."""

LIKELY = 8  # of a library's ways, best first, that may be timed at first sight

Made = tuple[list[Any], int]
"""Launches without addresses, and the bytes of working memory that they share."""


class Kernels(NamedTuple):
    """What may run: "numba", our own kernels; "vendor", a library's for each op that it has;
    "auto", the fastest known of both. `autotune`: ops that the table has no times of are tried.
    """

    which: str = "auto"
    autotune: bool = False

    def checked(self) -> Kernels:
        """Itself. Raises `DeviceError` where the libraries that are asked for are not there."""
        if self.which == "vendor" and (absent := missing()):
            verb = "is" if len(absent) == 1 else "are"
            needs = f" needs {' and '.join(absent)}, which {verb} not there"
            raise DeviceError(Wording(Argument("kernels", "vendor"), needs), hint=INSTALL)
        return self


class Candidate(NamedTuple):
    """One way to run a step. `make` gives its launches, or None where it turns out that it cannot
    be done.
    """

    name: str
    make: Callable[[], Made | None]
    copies: float = 0.0  # microseconds of those that it makes besides, alone

    @property
    def comparable(self) -> bool:
        """Whether its results lie in memory as the others' do."""
        return self.name != OURS_LAST and not self.copies

    def judged(self, us: float) -> float:
        """The time that counts, if it takes so long."""
        return max(us, (us + self.copies) / ALONE if self.copies else LEAST_US)


def as_judged(times: Times) -> Times:
    """Of the ways that may be taken; ours by its time with channels last, if it has one."""
    found = dict(times)
    last = found.pop(OURS_LAST, None)
    alone = found.get(OURS)
    if last is not None and alone is not None:
        found[OURS] = min(alone, max(last, min(alone / APART, alone - APART_US)))
    return found


class Trials(Protocol):
    """Times candidates on a device."""

    def times(self, step: Step, types: Types, candidates: list[Candidate]) -> Times:
        """Of each that gives the first one's results."""
        ...

    def quickest(self, step: Step, types: Types, candidates: list[Candidate]) -> str | None:
        """The name of the fastest that were timed in little time; the first one has precedence.
        None where no time is left for this op.
        """
        ...


class Chooser:
    """Chooses for one device. `table` is asked for where an op has a choice."""

    def __init__(self, policy: Kernels, table: Callable[[], TuningTable], trials: Trials):
        self.policy = policy
        self._table = table
        self._trials = trials
        self._untimed: set[str] = set()  # trials that failed: what is taken then stays

    def prepared(self, step: Step, types: Types) -> Made:
        """The launches of a step (operands as they are stored, then results)."""
        return self._chosen(step, types)[1]

    def takes(self, step: Step, types: Types) -> bool:
        """Whether kernels of ours can do all of a step that is several in one, or has its images
        in another way. Of an op that has libraries those are taken which are chosen for it alone.
        """
        layout: Layout | None = step.attrs.get("layout")
        if layout is not None and LAST in self._alone(step, layout, types):
            return True
        if not step.op.is_taken(*Lowering(step, types).args(), **step.attrs):
            return False
        if layout is not None:
            return self._alone(step, layout, types).startswith(OURS)
        epilogue: Epilogue | None = step.attrs.get("epilogue")
        if epilogue is None or epilogue.op.vendor is None:
            return True
        of, layout = step.members[0], dict(epilogue.attrs).get("layout")
        assert types[-1] is not None
        alone = (*types[: len(of.operands)], epilogue.result_type(types[-1]))
        alone = layout.types_alone(alone) if layout is not None else alone
        return self._chosen(of, alone)[0].startswith(OURS)

    def _alone(self, step: Step, layout: Layout, types: Types) -> str:
        """What is taken for a convolution by itself, of one that has its images in another way."""
        return self._chosen(step.members[0], layout.types_alone(types))[0]

    def _chosen(self, step: Step, types: Types) -> tuple[str, Made]:
        """The name of what is taken for a step, and its launches."""
        lowering = Lowering(step, types)
        variants = lowering.variants()
        if len(variants) == 1 and (step.op.vendor is None or self.policy == (OURS, False)):
            return OURS, lowering.lowered(next(iter(variants.values())))
        if (layout := step.attrs.get("layout")) is not None:
            name = self._alone(step, layout, types)
            ways = (*_vendors(step, types), *_ours(step, types, variants))
            return name, next(m for c in ways if c.name == name and (m := c.make()) is not None)
        ours = {c.name: c for c in _ours(step, types, variants)}
        last = _ours_last(step, types)
        key = f"{key_of(step, types)} #{_digest([*ours.values(), *last])}"
        times = self._times(key, step, types, [*ours.values(), *last])
        if not times and self.policy.which == "auto" and step.op.vendor and not _small(step):
            names = self._at_first_sight(key, step, types, [next(iter(ours.values())), *last])
        else:
            times = as_judged(times)
            names = sorted(times, key=lambda name: times[name])
        for candidate in self._in_order(step, types, ours, names):
            if (made := candidate.make()) is not None:
                return candidate.name, made
        raise AssertionError("our own kernels run every op")

    def _in_order(
        self, step: Step, types: Types, ours: dict[str, Candidate], names: Iterable[str]
    ) -> Iterator[Candidate]:
        """Those that may run: the named ones, then what is likely fast."""
        which = self.policy.which
        vendors = None  # to ask the libraries takes time
        for name in names:
            if name in ours and which != "vendor":
                yield ours[name]
            elif name not in ours and which != OURS:
                if vendors is None:
                    vendors = {c.name: c for c in _vendors(step, types)}
                if name in vendors:
                    yield vendors[name]
        if which == "auto" and _small(step):
            yield from ours.values()
        if which != OURS:
            yield from _vendors(step, types)
        yield from ours.values()

    def _times(self, key: str, step: Step, types: Types, ours: list[Candidate]) -> Times:
        """What is known, or can be found out if that is wanted."""
        table = self._table()
        times = table.get(key)
        if times is None and self.policy.autotune and key not in self._untimed:
            candidates = [*ours, *_judged(step, types)]
            several = sum(c.comparable for c in candidates) > 1
            times = self._trials.times(step, types, candidates) if several else {}
            if times:
                table.put(key, times)
            else:
                self._untimed.add(key)
        return times or {}

    def _at_first_sight(
        self, key: str, step: Step, types: Types, ours: list[Candidate]
    ) -> list[str]:
        """What was taken for an op that nobody tuned, or is fast now that it is tried. Where no
        time is left for that, it is what would part no others (`OURS_LAST`), or else a library's.
        """
        taken = self._table().chosen(key)
        if not taken and (vendors := list(islice(_judged(step, types), LIKELY))):
            taken = self._trials.quickest(step, types, [*ours, *vendors])
            able = [] if len(ours) > 1 else vendors
            taken = taken or next((c.name for c in able if c.make()), ours[0].name)
            self._table().choose(key, taken)
        return [taken] if taken else []


def _small(step: Step) -> bool:
    """Whether a library would gain nothing: its kernels are made for large work, or for much memory
    that is read once. A convolution that parts others with channels last costs them copies, too.
    """
    flops = step.op.flops(*step.operand_types, **step.attrs)
    x = step.operand_types[0]
    between = step.op.lays_out is not None and x is not None and x.dtype.is_half
    sizes: list[Any] = [t.nbytes for t in step.operand_types if t is not None]  # concrete
    much = max(sizes, default=0) >= WORTH_READING
    few = isinstance(flops, int) and flops < (WORTH_BETWEEN if between else WORTH_A_TRIAL)
    return few and not much


def _digest(ours: Iterable[Candidate]) -> str:
    """Of our kernels and how they are launched: times are those of what they were."""
    found = hashlib.sha256()
    for candidate in ours:
        made = candidate.make()
        for launch in made[0] if made else ():
            kernel = launch.kernel
            code = source.digest(kernel.function, kernel.dtype, CUDA)  # pyright: ignore
            found.update(f"{code} {kernel[1:]} {launch[1:]}".encode())
    return found.hexdigest()[:12]


def _ours(step: Step, types: Types, variants: dict[str, Any]) -> Iterator[Candidate]:
    for name, launches in variants.items():
        lowering = Lowering(step, types)
        yield Candidate(
            f"{OURS} {name}".strip(), lambda at=lowering, launches=launches: at.lowered(launches)
        )


def _with_channels_last(step: Step, types: Types) -> tuple[Step, Types] | None:
    """The same with images and result so."""
    x, *others, y = types
    if step.op.lays_out is None or (x, *others) != step.operand_types:
        return None
    stored = (with_channels_last(x), *others, with_channels_last(y))
    return convolving(step, step.operands, stored[:-1], True, True), stored


def _ours_last(step: Step, types: Types) -> list[Candidate]:
    """By a kernel of ours, where there is one."""
    made = _with_channels_last(step, types)
    if made is None:
        return []
    lowering = Lowering(*made)
    if not made[0].op.is_taken(*lowering.args(), **made[0].attrs):
        return []
    return [Candidate(OURS_LAST, lowering.prepared)]


def _judged(step: Step, types: Types) -> Iterator[Candidate]:
    """A library's ways as they are timed: those with channels last as between others."""
    made = _with_channels_last(step, types)
    last = {c.name: c for c in _vendors(*made)} if made else {}
    nbytes: Any = sum(t.nbytes for t in (types[0], types[-1]) if t is not None)
    copies = 2 * TURN_US + nbytes / BYTES_TURNED
    for way in _vendors(step, types):
        between = last.get(way.name)
        yield between._replace(copies=copies) if between else way


def _vendors(step: Step, types: Types) -> Iterator[Candidate]:
    """None where the libraries are not there, or do not take the op's types."""
    if step.op.vendor is None:
        return
    lowering = Lowering(step, types)
    try:
        for name, launches in step.op.vendor(*lowering.args(), **step.attrs):

            def make(launches: Any = launches) -> Made | None:
                result = launches()
                return None if result is None else Lowering(step, types).lowered(result)

            yield Candidate(name, make)
    except (Unavailable, Refused):
        return
