"""What a run gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan

if TYPE_CHECKING:
    import numpy as np

    from opstep.runtime.uninitialised import Unwritten


class Result(Mapping):
    """The outputs of a run: by position in `outputs`, and as a mapping by the names returned."""

    def __init__(self, names, outputs, plan: Plan, seconds: float, unwritten: list[Unwritten]):
        self.names: list[str] = names
        self.outputs: list[np.ndarray] = outputs
        self.plan = plan
        self.seconds = seconds  # of all steps, inputs in place, outputs not yet copied
        self.unwritten = unwritten  # elements that an op never wrote (debug runs look for them)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.outputs[self.names.index(name)] if name in self.names else self._missing(name)

    def _missing(self, name: str):
        raise KeyError(f"no output {name}; there are: {', '.join(self.names)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        from opstep.runtime.ir.types import dtype_of

        shown = (
            f"{n}: {TensorType(dtype_of(a.dtype), a.shape)}"
            for n, a in zip(self.names, self.outputs, strict=True)
        )
        return f"<Result {', '.join(shown)}>"


class Odd(NamedTuple):
    """A result with NaNs or infinities."""

    name: str
    size: int
    nan: int
    infinite: int

    @property
    def text(self) -> str:
        """``loss has 1 NaN of 1 elements``"""
        counts = {"NaN": self.nan, "infinite": self.infinite}
        told = " and ".join(f"{n:,} {kind}" for kind, n in counts.items() if n)
        return f"{self.name} has {told} of {self.size:,} elements"


def odd_results(results: Mapping[str, np.ndarray]) -> list[Odd]:
    """Those with NaNs or infinities."""
    import numpy as np

    floats = {n: a for n, a in results.items() if a.dtype.kind not in "iub"}
    found = [
        Odd(n, a.size, int(np.isnan(a).sum()), int(np.isinf(a).sum())) for n, a in floats.items()
    ]
    return [odd for odd in found if odd.nan or odd.infinite]
