"""Which way of running an op is taken: a kernel of ours, a library's, or what was fastest when all
were tried.

The choice depends on the op, its types and the table of the process (`tuning`), never on the plan:
async and debug mode run the same kernels, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.device.cuda.lowering import Lowering
from opstep.runtime.device.cuda.tuning import Table, Times, key_of
from opstep.runtime.device.cuda.vendor.libraries import INSTALL, Refused, Unavailable, missing
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Step

if TYPE_CHECKING:
    from opstep.runtime.device.cuda.device import CudaDevice

WHICH = ("auto", "numba", "vendor")
OURS = "numba"

Made = tuple[list[Any], int]
"""Launches without addresses, and the bytes of working memory that they share."""


class Kernels(NamedTuple):
    """What may run: "numba", our own kernels; "vendor", a library's for each op that it has; "auto",
    the fastest known of both. `autotune`: ops that the table does not know are tried first.
    """

    which: str = "auto"
    autotune: bool = False


def kernels(which: str = "auto", autotune: bool = False) -> Kernels:
    """As the user asks for it. Raises `InputError` for what is no choice, and `DeviceError` where
    the libraries that are asked for are not there.
    """
    if which not in WHICH:
        raise InputError(f"kernels is {which!r}; it can be {', '.join(WHICH[:-1])} or {WHICH[-1]}")
    if which == "vendor" and (absent := missing()):
        names = " and ".join(absent)
        verb = "is" if len(absent) == 1 else "are"
        raise DeviceError(f"--kernels vendor needs {names}, which {verb} not there", hint=INSTALL)
    return Kernels(which, autotune)


class Candidate(NamedTuple):
    """One way to run a step. `make` gives its launches, or None where it turns out that it cannot
    be done.
    """

    name: str
    make: Callable[[], Made | None]

    @property
    def is_ours(self) -> bool:
        return self.name.split(" ")[0] == OURS


class Chooser:
    """Chooses for one device. `tune` times candidates; the first one's results are what the others'
    are compared with.
    """

    def __init__(
        self,
        wanted: Kernels,
        table: Table,
        tune: Callable[[Step, tuple[TensorType | None, ...], list[Candidate]], Times],
    ):
        self.wanted = wanted
        self.table = table
        self._tune = tune

    def prepared(self, step: Step, types: tuple[TensorType | None, ...]) -> Made:
        """The launches of a step (operands as they are stored, then results)."""
        lowering = Lowering(step, types)
        variants = lowering.variants()
        if len(variants) == 1 and step.op.vendor is None:
            return lowering.lowered(next(iter(variants.values())))
        key = key_of(step, types)
        times = self.table.get(key)
        if times is None and self.wanted.autotune:
            candidates = [*_ours(step, types, variants), *_vendors(step, types)]
            times = self._tune(step, types, candidates) if len(candidates) > 1 else {}
            self.table.put(key, times)
        candidates = self._allowed(step, types, variants)
        for candidate in _fastest_first(candidates, times or {}):
            if (made := candidate.make()) is not None:
                return made
        raise AssertionError("our own kernels run every op")

    def _allowed(self, step: Step, types: Any, variants: dict[str, Any]) -> Iterator[Candidate]:
        """Those that may run, what is likely fastest first."""
        if self.wanted.which != OURS:
            yield from _vendors(step, types)
        yield from _ours(step, types, variants)


def _fastest_first(candidates: Iterator[Candidate], times: Times) -> Iterator[Candidate]:
    """Those that were timed by their times, then the others as they stand."""
    if not times:
        yield from candidates
        return
    there = list(candidates)
    order = sorted(range(len(there)), key=lambda k: (times.get(there[k].name, float("inf")), k))
    yield from (there[k] for k in order)


def _ours(step: Step, types: Any, variants: dict[str, Any]) -> Iterator[Candidate]:
    for name, given in variants.items():
        lowering = Lowering(step, types)
        yield Candidate(
            f"{OURS} {name}".strip(), lambda at=lowering, given=given: at.lowered(given)
        )


def _vendors(step: Step, types: Any) -> Iterator[Candidate]:
    """None where the libraries are not there, or do not take the op's types."""
    if step.op.vendor is None:
        return
    lowering = Lowering(step, types)
    try:
        for name, launches in step.op.vendor(*lowering.args(), **step.attrs):

            def make(launches: Any = launches) -> Made | None:
                given = launches()
                return None if given is None else Lowering(step, types).lowered(given)

            yield Candidate(name, make)
    except (Unavailable, Refused):
        return
