"""Kinds of a hunt that no NaN and no infinity shows: results that another computation in f64 gives
otherwise, indices that name nothing, and expressions over the statistics of results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from opstep.frontends.torch.dims import dtype_of
from opstep.frontends.torch.eager.births import Birth, Births, places
from opstep.frontends.torch.eager.dispatch import Listener
from opstep.frontends.torch.eager.figures import statistics_of
from opstep.frontends.torch.eager.ops import Facts, facts_of, positional, tensors_in
from opstep.frontends.torch.eager.reasons import reason_of, wide_result
from opstep.frontends.torch.eager.tensors import readable, undispatched
from opstep.frontends.torch.evaluating import array_of
from opstep.runtime.nan.kinds import Criteria, Value
from opstep.runtime.nan.silent import SMALLEST
from opstep.runtime.nan.verdict import Element, Verdict

# Ops on integers whose results may not fit, beside elementwise ones.
_ARITHMETIC = ("sum", "prod", "cumsum", "cumprod", "mm", "bmm", "mv", "dot", "_to_copy", "copy_")


class Kinds(Listener):
    """`criteria`: what is hunted; `report`: called with each birth that is one of them."""

    def __init__(self, criteria: Criteria, births: Births, report: Callable[[Birth], None]):
        self._criteria = criteria
        self._silent = criteria.silent - {"index"}
        self._births = births
        self._report = report
        self._local = threading.local()

    def runs(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Keeps operands that it writes as they were."""
        self._local.given = given = positional(op, tuple(args), kwargs)
        for k in facts_of(op).writes if self._silent else ():
            if k < len(given):
                given[k] = _copied(given[k])

    def ran(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        facts, given = facts_of(op), self._local.given
        if facts.skipped or not facts.arguments:
            return
        written = facts.writes and not facts.statistics
        now = positional(op, tuple(args), kwargs)
        results = [t for k in facts.writes for t in tensors_in(now[k])] if written else None
        for k, t in enumerate(tensors_in(result) if results is None else results):
            if type(t) is torch.Tensor or readable(t):
                with undispatched():
                    self._look(op, facts, given, t, k)

    def failed(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """An op raised: it may have been given an index that names nothing."""
        given = positional(op, tuple(args), kwargs)
        tensors = [t for a in given for t in tensors_in(a)]
        is_indexed = any(t.dtype in (torch.int64, torch.int32) for t in tensors)
        if is_indexed and "index" in self._criteria.kinds:
            none = torch.empty(0)
            self._judged(self._birth(op, given, none, 0, Verdict("index", 0, 0, 0)))

    def _look(self, op: Any, facts: Facts, given: list[Any], t: torch.Tensor, k: int) -> None:
        if readable(t) and not t.is_complex() and t.numel() and self._criteria.expressions:
            figures = partial(statistics_of, t)
            value = Value(array_of(t.detach().cpu()), figures)
            for text in self._criteria.broken(figures, value):
                kind, _, figures_text = text.partition(": ")
                size = t.numel()
                verdict = Verdict(kind, size, size, size, ((figures_text or "it holds", size),))
                self._report(self._birth(op, given, t, k, verdict))
        if not self._silent or facts.random or t.is_complex() or not t.numel():
            return
        exact = wide_result(op, given, k, self._counts(facts, t))
        if exact is None or exact.shape != t.shape or not exact.is_floating_point():
            return
        for kind, text, mask in _lost(t, exact, facts):
            if kind in self._silent and bool(mask.any()):
                verdict = _verdict(kind, text, mask, t, exact)
                self._report(self._birth(op, given, t, k, verdict))
                return
        if t.is_floating_point() and _is_wrong(t, exact):
            for kind in sorted(self._silent):  # our op says whether it is not only rounded
                size = t.numel()
                self._judged(self._birth(op, given, t, k, Verdict(kind, size, size, size)))

    def _counts(self, facts: Facts, t: torch.Tensor) -> bool:
        is_integer = not (t.is_floating_point() or t.dtype is torch.bool)
        return is_integer and (facts.pointwise or facts.name in _ARITHMETIC)

    def _birth(self, op: Any, given: list[Any], t: torch.Tensor, k: int, verdict: Verdict) -> Birth:
        birth = self._births.lost(op, given, t, k)
        birth.verdict = verdict
        return birth

    def _judged(self, birth: Birth) -> None:
        """Reports it if our own op loses something for these operands, too."""
        if (found := reason_of(birth)) is not None:
            birth.verdict = found.verdict
            self._report(birth)


def _lost(t: torch.Tensor, exact: torch.Tensor, facts: Facts) -> Iterator[tuple[str, str, Any]]:
    """Kinds, texts and masks of elements that a result's type could not hold."""
    name = dtype_of(t.dtype).name
    if t.dtype is torch.bool:
        return
    if not t.is_floating_point():
        limits = torch.iinfo(t.dtype)
        of_float = facts.name in ("_to_copy", "copy_")
        text = f"beyond what {name} holds" if of_float else f"{name} wraps"
        yield "overflow", text, (exact > limits.max) | (exact < limits.min)
    elif t.dtype is not torch.float64:
        yield "overflow", f"overflow of {name}", torch.isinf(t) & torch.isfinite(exact)
        lost = (t == 0) & (exact != 0) & (exact.abs() < SMALLEST[name])
        yield "underflow", f"underflow of {name} to 0", lost


def _is_wrong(t: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether an element is altogether wrong."""
    wide = t.double()
    wrong = torch.isfinite(wide) & torch.isfinite(exact) & ((wide - exact).abs() > exact.abs() / 2)
    return bool((wrong & (exact.abs() >= SMALLEST[dtype_of(t.dtype).name])).any())


def _verdict(kind: str, text: str, mask: torch.Tensor, t: torch.Tensor, exact: Any) -> Verdict:
    count = int(mask.sum())
    elements = tuple(
        Element(p, float(t[p]), text, float(exact[p]), ()) for p in places(mask)
    )  # fmt: skip
    return Verdict(kind, count, t.numel(), count, ((text, count),), elements, explained=count)


def _copied(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.detach().clone()
    return [_copied(a) for a in argument] if isinstance(argument, list | tuple) else argument
