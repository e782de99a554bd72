"""Values at which a NaN or an infinity matters, and the birth that is to blame for it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from opstep.frontends.torch.eager.births import (
    BORN,
    WRITTEN,
    Birth,
    Births,
)
from opstep.frontends.torch.eager.places import Place, frames, is_engine, is_library, is_own
from opstep.frontends.torch.eager.reasons import is_overflow
from opstep.frontends.torch.eager.tensors import (
    FINITE,
    INFINITE,
    NAN,
    level_of,
    readable,
    storage_key,
)
from opstep.runtime.nan.kinds import Criteria

LOSS, READ, RESULT = "the loss", "a number that the script reads", "the result of the model"
GRADIENT, PARAMETER = "a gradient at the optimizer's step", "a parameter after the optimizer's step"
END = "a parameter at the end of the script"
FAILED = "a value at hand where the script failed"
SHOWN = "a tensor that the script prints, saves or hands over"
SHOWN_RESULT = "a result that the script prints, saves or hands over"
TESTED = "a tensor that the script tests for NaNs and infinities"
BIRTH = "an element of it"
_IN_UPDATES = (GRADIENT, PARAMETER)
_TEST = r"is_?(nan|inf|finite)"
_GIVEN = r"\((?:[^()]|\([^()]*\))*\)"
_ALL = r"(any|all|sum|count_nonzero|item)"
_ASKS = re.compile(  # of a whole tensor: which elements are bad, a script asks to repair them
    rf"^(if|elif|while)\b.*{_TEST}|{_TEST}{_GIVEN}\.{_ALL}\b|\b{_ALL}\((\w+\.)?{_TEST}\b"
)
_PRINTS = re.compile(r"[\w.]*(print|log|debug|info|warn\w*|write)\(")
_LEAVES_OUT = ("continue", "raise")  # which somebody catches, or the script fails
FEW = 8  # ops that run after a test where a script ends because of it


class Harm(NamedTuple):
    """`birth`: the first one that made a value bad which matters. `sink`: such as LOSS; `label`:
    which parameter; `place`: where the script is; `level`: of the value. `late`: it was seen later.
    """

    birth: Birth
    sink: str
    label: str
    place: Place
    level: int
    late: bool = False


class Sinks:
    """Asked by a watcher at each value that matters. `report` is called with the first harm that
    each line does.
    """

    def __init__(self, births: Births, report: Callable[[Harm], None], criteria: Criteria):
        self._births = births
        self._report = report
        self.hunted = {FINITE: False, INFINITE: criteria.infinities, NAN: criteria.nans}
        self._reported: set[Any] = set()
        self._printed: Harm | None = None  # the first that the script tested, and said so
        self._tested: tuple[Harm, int] | None = None  # the latest, with the number of ops till then
        self.ops: Callable[[], int] = lambda: 0
        self.place_of: Callable[[], Place] = lambda: Place(())
        self.level_of: Callable[[torch.Tensor], int] = level_of
        self.note: Callable[[torch.Tensor, str], bool] = lambda t, sink: False  # see `Native.note`

    def loss(self, t: torch.Tensor) -> None:
        """A backward begins at it."""
        self.ask(t, LOSS)

    def read(self, t: torch.Tensor) -> None:
        """Its number is asked for, or printed."""
        self.ask(t, READ)

    def tested(self, t: torch.Tensor) -> None:
        """The script may ask whether it has a NaN."""
        births = self._births.of(storage_key(t))
        self.test(births, self.level_of(t), self.place_of(), self.ops())

    def test(
        self, births: Sequence[Birth], level: int, place: Place, ops: int, late: bool = False
    ) -> None:  # fmt: skip
        """Most scripts repair what they find so, or leave it out: it is reported at the end, if the
        answer was printed or the script did little more than the `ops` that had run by then. An
        infinity may be meant, unless a wider type could hold the number.
        """
        own = frames(place.stack)
        text = linecache.getline(*own[0][:2]).strip() if own else ""
        if not _ASKS.search(text) or is_library(own[0].file) or not self.hunted[level]:
            return
        birth = self._to_blame(births, level, SHOWN)
        if birth is None or (level == INFINITE and not is_overflow(birth)):
            return
        harm = Harm(birth, TESTED, "", place, level, late)
        if _PRINTS.match(text):
            self._printed = self._printed or harm
            return
        following = linecache.getline(own[0].file, own[0].line + 1).strip()
        if not following.startswith(_LEAVES_OUT):
            self._tested = harm, ops

    def ended(self) -> None:
        """The script is over: what it found itself is reported."""
        harm = self._printed
        if harm is None and self._tested is not None and self.ops() - self._tested[1] <= FEW:
            harm = self._tested[0]
        if harm is not None:
            self.harmed(harm)

    def shown(self, given: Any) -> None:
        """It leaves PyTorch."""
        for t in tree_leaves(given) if self._births.any or torch.cuda.is_initialized() else ():
            if isinstance(t, torch.Tensor):
                computed = readable(t) and self._births.is_computed(storage_key(t))
                self.ask(t, SHOWN_RESULT if computed else SHOWN)

    def results(self, found: Any, depth: int = 0) -> None:
        """The outermost module gives it."""
        if isinstance(found, torch.Tensor):
            self.ask(found, RESULT)
        elif depth < 4 and isinstance(found, list | tuple):
            for one in found[:64]:
                self.results(one, depth + 1)
        elif depth < 4 and isinstance(found, dict):
            for one in list(found.values())[:64]:
                self.results(one, depth + 1)

    def ask(self, t: torch.Tensor, sink: str, label: str = "") -> bool:
        """Whether it does harm there; then that is reported."""
        if not readable(t) or not t.numel():
            return False
        kind = SHOWN if sink == SHOWN_RESULT else sink
        if t.is_cuda and kind in (RESULT, SHOWN) and self.note(t, kind):
            return False
        storage = storage_key(t)
        level = self.level_of(t)
        if not self.hunted[level]:
            return False
        known = self._births.of(storage) or [self._births.outside(t)]
        return self.judge(known, level, sink, label, self.place_of())

    def judge(
        self, births: Sequence[Birth], level: int, sink: str, label: str, place: Place,
        late: bool = False,
    ) -> bool:  # fmt: skip
        """Whether one of the births of what is bad in a value does harm there; that is reported."""
        birth = self._to_blame(births, level, sink) if self.hunted[level] else None
        if birth is not None:
            self.harmed(Harm(birth, sink, label, place, level, late))
        return birth is not None

    def lost(self, birth: Birth) -> None:
        """Reports a birth that no NaN and no infinity shows, where it is born."""
        self.harmed(Harm(birth, BIRTH, "", birth.place, birth.level))

    def harmed(self, harm: Harm) -> None:
        """Reports it, unless its line was reported."""
        place = harm.birth.place
        kind = harm.birth.kind if harm.birth.verdict is not None else harm.birth.how
        key = harm.birth.op, kind, place.stack[:6], place.node.name, place.phase
        if key not in self._reported:
            self._reported.add(key)
            self._report(harm)

    def among(self, tensors: Sequence[torch.Tensor], indices: Sequence[int], sink: str, label_of):
        """Of those that are bad the first that does harm."""
        for k in indices:
            if self.ask(tensors[k], sink, label_of(k)):
                break

    def _to_blame(self, births: Sequence[Birth], level: int, sink: str) -> Birth | None:
        """The first birth of the kind that the value is, or an infinity that led to it."""
        loud = [b for b in births if self._is_loud(b, sink)]
        if not loud and sink in (LOSS, *_IN_UPDATES):  # nobody wants one there, whoever wrote it
            loud = [b for b in births if not b.scaled]
        same = [b for b in loud if b.level == level] or loud
        found = min(same, key=lambda b: b.order, default=None)
        while found is not None:
            causes = [c for c in found.causes if c.order < found.order and self._is_loud(c, sink)]
            if not causes:
                return found
            found = min(causes, key=lambda b: b.order)
        return None

    def _is_loud(self, birth: Birth, sink: str) -> bool:
        """An infinity that the script writes does no harm by itself, nor what the backward of a
        scaled loss gives, unless the optimizer takes it. What the data lacks may be shown.
        """
        if (birth.scaled and sink not in _IN_UPDATES) or (sink == SHOWN and birth.how != BORN):
            return False
        if birth.how == BORN or birth.level == NAN:
            return True
        return birth.into_parameter or (birth.how != WRITTEN and birth.computed)


def values_at(error: BaseException) -> list[tuple[str, torch.Tensor]]:
    """The tensors that the functions have which an error came through, the innermost and what they
    made last first, each with its name and the line of the script. None of an error within
    autograd: what it came from is at hand nowhere.
    """
    trace, frames, at = error.__traceback__, [], ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        at = f"{file}:{trace.tb_lineno}" if is_own(file) else at
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    if not frames or is_engine(frames[-1].f_code):
        return []
    values = (one for frame in reversed(frames) for one in reversed(list(frame.f_locals.items())))
    tensors = (one for one in values if isinstance(one[1], torch.Tensor) and readable(one[1]))
    return [(f"{name}, {FAILED.removeprefix('a value ')} ({at}),", t) for name, t in tensors]
