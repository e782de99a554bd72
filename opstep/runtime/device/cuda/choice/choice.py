"""Chooses how an op runs: a kernel of ours, a library's, or what was fastest when all
were tried.

The choice depends on the op, its types and the table of the process (`tuning`), never on the plan:
async and debug mode run the same kernels, and give the same bits. Where nothing is known of a large
op, the likely ways are timed before it runs for the first time, and what is taken then is kept.

A convolution of ours that can have its images with channels last (`plan.layouts`) is judged by the
time that it takes so: in a network it hardly ever stands alone. A library's would part the one
behind it from the one before it, so that images are turned once more.
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
from opstep.runtime.ir.interfaces import lays_out_of
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.plan.epilogues import Epilogue
from opstep.runtime.plan.layouts import Layout, convolving, with_channels_last
from opstep.runtime.plan.plan import Step

OURS = "numba"
LAST = f"{OURS}, channels last"  # a time of ours that is known, not a way that is taken for an op
# What ours may take at most where channels are not last after all: times the best, or so many
# microseconds more.
APART = 1.25
APART_US = 4.0
TURN_US = 2.0  # microseconds that it takes to turn images, besides
BYTES_TURNED = 1_500_000  # of them in a microsecond
WORTH_A_TRIAL = 1 << 26  # floating-point operations: what has fewer takes a few microseconds
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
    spares: float = 0.0  # microseconds of what comes behind it: it takes so much less

    @property
    def comparable(self) -> bool:
        """Whether its results lie in memory as the others' do."""
        return self.name != LAST


def as_judged(times: Times) -> Times:
    """Of the ways that may be taken; ours by its time with channels last, if it has one."""
    found = dict(times)
    last = found.pop(LAST, None)
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
        op: Any = step.op  # a `PlanOp`
        if not op.is_taken(*Lowering(step, types).args(), **step.attrs):
            return False
        layout: Layout | None = step.attrs.get("layout")
        epilogue: Epilogue | None = step.attrs.get("epilogue")
        of = step.members[0]
        if layout is not None:
            alone = layout.types_alone(types)
        elif epilogue is not None and epilogue.op.vendor is not None:
            assert types[-1] is not None
            alone = (*types[: len(of.operands)], epilogue.result_type(types[-1]))
        else:
            return True
        return self._chosen(of, alone)[0].startswith(OURS)

    def _chosen(self, step: Step, types: Types) -> tuple[str, Made]:
        """The name of what is taken for a step, and its launches."""
        lowering = Lowering(step, types)
        variants = lowering.variants()
        if len(variants) == 1 and (step.op.vendor is None or self.policy == (OURS, False)):
            return OURS, lowering.lowered(next(iter(variants.values())))
        ours = {c.name: c for c in _ours(step, types, variants)}
        last = _with_channels_last(step, types)
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
        """The best way that is known, or is found out if that is wanted."""
        table = self._table()
        times = table.get(key)
        if times is None and self.policy.autotune and key not in self._untimed:
            candidates = [*ours, *_vendors(step, types)]
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
        time is left for that, it is what would part no others (`LAST`), or else a library's.
        """
        taken = self._table().chosen(key)
        if not taken and (vendors := list(islice(_vendors(step, types), LIKELY))):
            taken = self._trials.quickest(step, types, [*ours, *vendors])
            able = [] if len(ours) > 1 else vendors
            taken = taken or next((c.name for c in able if c.make()), ours[0].name)
            self._table().choose(key, taken)
        return [taken] if taken else []


def _small(step: Step) -> bool:
    """Whether a library would gain nothing: its kernels are made for large work, or for much memory
    that is read once.
    """
    flops = step.op.flops(*step.operand_types, **step.attrs)
    sizes: list[Any] = [t.nbytes for t in step.operand_types if t is not None]  # concrete
    much = max(sizes, default=0) >= WORTH_READING
    return isinstance(flops, int) and flops < WORTH_A_TRIAL and not much


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


def _with_channels_last(step: Step, types: Types) -> list[Candidate]:
    """The same with images and result so, where there are kernels for that."""
    x, *others, y = types
    if lays_out_of(step.op) is None or (x, *others) != step.operand_types:
        return []
    for x_last in (True, False):
        stored = (with_channels_last(x) if x_last else x, *others, with_channels_last(y))
        made = convolving(step, step.operands, stored[:-1], x_last, True)
        lowering = Lowering(made, stored)
        op: Any = made.op
        if op.is_taken(*lowering.args(), **made.attrs):
            nbytes: Any = stored[-1].nbytes  # concrete
            return [Candidate(LAST, lowering.prepared, TURN_US + nbytes / BYTES_TURNED)]
    return []


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
