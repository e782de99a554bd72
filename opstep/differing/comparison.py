"""What two runs side by side are told, and what they tell."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from opstep.api.devices import check_computes, kind_of
from opstep.api.settings import RunSettings
from opstep.differing.elements import Elements
from opstep.differing.verdict import Verdict
from opstep.runtime.ir.diagnostics import OpstepError, did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import MODES

SIDE = ("mode", "streams", "alloc", "fill", "sync", "device", "kernels", "threads")  # by words


def settings(text: str, base: RunSettings = RunSettings()) -> RunSettings:
    """How a side runs: reads ``debug``, ``streams=4,alloc=fresh``; else it is as in `base`.

    Raises `InputError`.
    """
    chosen: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals and name in MODES:
            name, value = "mode", name
        elif name not in SIDE or not value:
            listed = ", ".join(("debug", "async", *(f"{f}=…" for f in SIDE)))
            near = did_you_mean(name, (*SIDE, *MODES))
            raise InputError(
                f"{word!r} is not a setting of a run", hint=near or f"there are: {listed}"
            )
        counted = name in ("streams", "threads") and value.isdecimal()
        chosen[name] = int(value) if counted else value
    combined = replace(base, **chosen)
    check_computes(combined.device, "compared")
    if "kernels" in chosen and not kind_of(combined.device).gpu:
        raise InputError("kernels are chosen on GPUs", hint="add device=cuda")
    return combined


class OpSite(NamedTuple):
    """Where an op stands, and which of its runs: `site` in the calls, `turns` of the loops around
    it.
    """

    site: str
    op: str
    value: str
    type: TensorType
    turns: list[int]
    file: str | None
    line: int | None
    statement: str


class Difference(NamedTuple):
    """The first op whose result differs. `kind`: values, type, or only: one side alone ran it; the
    other is None.

    `changing` names the sides, a or b, that give something else when they are run again.
    """

    step: int
    kind: str
    a: OpSite | None
    b: OpSite | None
    elements: Elements | None = None
    changing: tuple[str, ...] = ()

    @property
    def site(self) -> OpSite:
        """Where the op stands; in the first program, if it is there."""
        found = self.a or self.b
        assert found is not None
        return found


@dataclass
class Comparison:
    """What came of it. `compared` counts results of ops, up to the end of the first step that
    differs; `differing` those of that step that do. `initial` are named tensors that differ before
    the first step; `overwritten` outputs and named tensors that differ though all results of ops
    were the same; `alone` sites that only one of two programs has. `errors`: what a side said that
    did not come to the end. `passes`: runs of each side; `complete`: nothing was too large to
    compare. `coarse`: where floats have other types on both sides, the coarsest of these.
    """

    names: tuple[str, str]
    initial: list[str] = field(default_factory=list)
    steps: int = 0
    compared: int = 0
    differing: int = 0
    first: Difference | None = None
    overwritten: list[str] = field(default_factory=list)
    alone: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    errors: dict[str, OpstepError] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    passes: int = 0
    complete: bool = True
    coarse: str = ""

    @property
    def same(self) -> bool:
        """Whether nothing differed."""
        return not (self.first or self.initial or self.overwritten or len(self.errors) == 1)
