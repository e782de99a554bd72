"""Flags that a replay has shown to do no harm, so that not each step need be replayed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opstep.runtime.nan.findings import INTENDED

if TYPE_CHECKING:
    from opstep.runtime.device.flagging import Raised
    from opstep.runtime.nan.findings import Finding

Mark = tuple[int, int, str]  # a plan, a value of it, nan or inf

LOOKS = 8  # steps in a row that are replayed though only infinities of the program's own came out


def marks_of(raised: Iterable[Raised]) -> set[Mark]:
    """Those of a flag may be two."""
    found: set[Mark] = set()
    for r in raised:
        found.update((id(r.plan), r.value, k) for k in ("nan", "inf") if getattr(r, k))
    return found


class Harmless:
    """Of one hunt. Where infinities of the program's own come out, a later step may have others in
    the same place: so the first few such steps are replayed, then ever fewer. `unseen`: the steps
    that were not.
    """

    def __init__(self) -> None:
        self.marks: set[Mark] = set()  # never to be looked into again
        self._looks = 0
        self._next = 0  # the step from which on own infinities are looked into again
        self._own: set[Mark] = set()
        self.unseen = 0
        self._passed = -1  # the last of these

    def count(self, marks: set[Mark], step: int) -> set[Mark]:
        """Those of the flags of a step that may mean something."""
        left = marks - self.marks
        if step >= self._next:
            return left
        if left & self._own and step != self._passed:
            self.unseen, self._passed = self.unseen + 1, step
        return left - self._own

    def add(
        self, marks: set[Mark], others: Sequence[Finding], step: int, cleared: bool = True
    ) -> None:
        """A replay of the step found nothing but `others`, which are masked or intended. `cleared`:
        flags that are raised later are those of later steps.
        """
        stay = {f.bad for f in others if f.chain and not (f.saved and f.kind == INTENDED)}
        own = {m for m in marks if m[2] in stay}
        self.marks |= marks - own
        if step == self._passed:  # another flag has had it replayed
            self.unseen, self._passed = self.unseen - 1, -1
        if own:
            self._own |= own
            self._looks += 1
            self._next = step + 1 if self._looks < LOOKS else 2 * step + 1
            self._next = self._next if cleared else sys.maxsize
