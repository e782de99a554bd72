"""What comes of a model that is run here and by another library, and who of the two is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from opstep.differing.elements import Elements
from opstep.differing.errors import TOLERANCE, Error

FARTHER = 16  # times the other's: an error that is a fault, and no other order of a sum
ROUNDING, FAULT_A, FAULT_B, LOSS, UNKNOWN = "rounding", "a", "b", "loss", "unknown"
EXPORT = "export"


class Own(NamedTuple):
    """What an op itself adds to one side's result. `excess`: the largest error of an element, as a
    multiple of what rounding and the condition of the op let it be.
    """

    error: Error
    excess: float

    @property
    def right(self) -> bool:
        return self.excess <= 1


class OpDifference(NamedTuple):
    """An op of the model whose result, `value`, differs by more than rounding to its type.

    `statement` and `site`: what computes it here. `elements` and `total` compare our result with
    the other side's; `came` is the largest such difference of an operand, `through`. `own`: what
    the op itself adds on each side, on the operands that this side had. `verdict`: "a" or "b" is
    the side with a fault; "rounding"; "loss": both lose as much; "unknown": there is no f64 of it;
    "export": the first side's file says something else than the model that it came from. `other`:
    what the other side has for it, and `weights`: of another value there, where these are two.
    """

    op: str
    value: str
    type: str
    file: str
    line: int
    source: str
    module: str
    statement: str
    site: str
    elements: Elements
    total: Error
    came: float
    through: str
    own: tuple[Own | None, Own | None]
    verdict: str
    other: str = ""
    weights: tuple[str, ...] = ()

    @property
    def added(self) -> float:
        """How much farther the sides are apart behind it."""
        return float("inf") if self.total.unlike else self.total.relative - self.came

    @property
    def is_far(self) -> bool:
        """Whether it is much more than what came in, and than rounding."""
        rounding = TOLERANCE.get(self.type.partition("[")[0], 0.0)
        return self.added > FARTHER * max(self.came, rounding)


class OutputErrors(NamedTuple):
    """An output: the two sides' distance, and that of each from a run of all the model in f64."""

    apart: Error
    a: Error | None
    b: Error | None


@dataclass
class ModelComparison:
    """What came of it. `compared` counts results of ops that both sides have; `differing`
    those that are apart, in the order of the model. `complete`: all of ours fitted into memory.
    `unpaired`: how many of the first side's results the other has none for.
    `fused`: only outputs could be seen, as what lies between them is compiled as one. `runs`: the
    keys of both sides, where they were recorded.
    """

    names: tuple[str, str]
    compared: int = 0
    differing: list[OpDifference] = field(default_factory=list)
    outputs: dict[str, OutputErrors] = field(default_factory=dict)
    complete: bool = True
    unpaired: int = 0
    fused: bool = False
    runs: tuple[str, ...] = ()

    @property
    def faults(self) -> list[OpDifference]:
        """Ops of which one side's error is no rounding."""
        return [d for d in self.differing if d.verdict in (FAULT_A, FAULT_B, EXPORT)]

    @property
    def unjudged(self) -> list[OpDifference]:
        """Ops whose results are farther apart than what came in, and nobody knows who is right."""
        return [d for d in self.differing if d.verdict == UNKNOWN and d.is_far]

    @property
    def first(self) -> OpDifference | None:
        """The first op with a fault, or which may have one; else the first that differs."""
        odd = min((*self.faults[:1], *self.unjudged[:1]), key=self.differing.index, default=None)
        return odd or next(iter(self.differing), None)

    @property
    def same(self) -> bool:
        """Whether nothing but rounding is between the sides."""
        return not self.faults and not self.unjudged


def verdict(a: Own | None, b: Own | None) -> str:
    """The side whose error is no rounding; `LOSS` where both are as far away."""
    if a is None or b is None:
        return UNKNOWN
    if a.right and b.right:
        return ROUNDING
    if a.excess > FARTHER * b.excess:
        return FAULT_A
    if b.excess > FARTHER * a.excess:
        return FAULT_B
    return ROUNDING if a.right or b.right else LOSS
