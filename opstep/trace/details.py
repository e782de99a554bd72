"""What is taken of tensors beyond their statistics: what `--stats-also` says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opstep.kernels.statistics import details as ops
from opstep.kernels.statistics.details import CHANNEL, Detail
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.plan.plan import Step
from opstep.runtime.statistics import ENABLED

if TYPE_CHECKING:
    import numpy as np

KINDS: dict[str, type[Detail]] = {
    "quantiles": ops.quantiles,
    "signed": ops.signed,
    "channels": ops.channels,
}
MOST_CHANNELS = 4096  # of a tensor; of one with more, none is looked at


class Details:
    """``quantiles``, ``signed``, ``channels``, or several with commas between them; none.

    ``channels=AXIS`` says along which axis they lie; without, it is axis 1 ([N, C], [N, C, H, W]).
    Raises `InputError` where the text says something else.
    """

    def __init__(self, text: str = ""):
        self.text = text.strip()
        self.attributes: dict[str, dict[str, int]] = {}  # by kind: attributes of its op
        for part in filter(None, (p.strip() for p in self.text.split(","))):
            kind, equals, axis = (p.strip() for p in part.partition("="))
            if kind not in KINDS:
                message = Wording(Argument("stats_also", self.text), f": there is no {kind}")
                raise UnknownName(message, kind, KINDS)
            digits = axis.removeprefix("-")
            if equals and not (kind == "channels" and digits.isascii() and digits.isdigit()):
                argument = Argument("stats_also", part)
                raise InputError(Wording(argument, ": expected channels=AXIS, such as -1"))
            self.attributes[kind] = {"axis": int(axis or 1)} if kind == "channels" else {}
        self._steps: dict[TensorType, list[tuple[Step, tuple[TensorType, ...]]]] = {}

    def steps(self, t: TensorType) -> list[tuple[Step, tuple[TensorType, ...]]]:
        """For a device: see `device.protocols.Recorder`."""
        if t not in self._steps:
            self._steps[t] = list(self._steps_of(t))
        return self._steps[t]

    def kinds(self, t: TensorType) -> dict[str, dict[str, int]]:
        """What is taken of such a tensor, and how."""
        found = dict(self.attributes)
        axis = _axis(t, **found.pop("channels")) if "channels" in found else None
        return found | ({} if axis is None else {"channels": {"axis": axis}})

    def words(self, t: TensorType) -> list[tuple[str, int]]:
        """The kinds in the order in which their words stand, and how many each has."""
        return [(step.op.name, _size(types[-1])) for step, types in self.steps(t)]

    def of(self, array: np.ndarray, t: TensorType) -> np.ndarray:
        """i64[n], the words about an array."""
        import numpy as np

        from opstep.runtime.device.cpu.device import execute

        one = np.ones((), np.int64)
        found = [execute(KINDS[k], [array, one], a)[0].ravel() for k, a in self.kinds(t).items()]
        return np.concatenate([*found, np.zeros(0, np.int64)])

    def _steps_of(self, t: TensorType) -> Iterator[tuple[Step, tuple[TensorType, ...]]]:
        for kind, attrs in self.kinds(t).items():
            op = KINDS[kind]
            result = op.infer(t, ENABLED, **attrs)
            step = Step(op, (), (), (t, ENABLED), attrs, 0, Apply((), Name(kind, NOWHERE), ()))
            yield step, (t, ENABLED, result)


def _size(t: TensorType) -> int:
    return t.size  # pyright: ignore[reportReturnType] - concrete


def _axis(t: TensorType, axis: int) -> int | None:
    """Counted from the front; None where the tensor has no channels, or too many."""
    rank = len(t.shape)
    if rank < 2 or not -rank <= axis < rank:
        return None
    count: Any = t.shape[axis]
    return axis % rank if count <= MOST_CHANNELS else None


# --- from words to numbers ------------------------------------------------------------------------


def numbers(keys: np.ndarray, dtype: DType) -> np.ndarray:
    """f64 of any shape: the elements whose keys these are."""
    import numpy as np

    if not dtype.is_float:
        return keys.astype(np.float64)
    sizes = np.abs(keys).astype(f"u{dtype.itemsize}").view(dtype.numpy).astype(np.float64)
    return np.where(keys < 0, -sizes, sizes)


def quantiles(words: np.ndarray, dtype: DType) -> np.ndarray:
    """f64[n, 6] from i64[n, QUANTILES]: p1, p50, p99 of x, then of |x|; NaN where there are none.

    Between two elements the quantile lies in proportion, as NumPy's.
    """
    import numpy as np

    near = numbers(words[:, 1:], dtype).reshape(len(words), 2 * len(ops.PERCENTS), 2)
    near[:, len(ops.PERCENTS) :] = np.abs(near[:, len(ops.PERCENTS) :])
    low, high = near[:, :, 0], near[:, :, 1]
    rest = np.array(ops.PERCENTS) * (words[:, :1] - 1) % 100 / 100
    share = np.concatenate([rest, rest], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        between = low * (1 - share) + high * share
        exact = np.where(low == high, low, np.clip(between, low, high))
    return np.where(words[:, :1] > 0, exact, math.nan)


def extremes(words: np.ndarray, dtype: DType) -> tuple[list, list, list, list]:
    """From i64[n, CHANNEL]: finite elements, minimum, maximum, zeros; integers as they are, None
    where no element is finite.
    """
    count, low, high, zeros = words.reshape(-1, CHANNEL).T
    ends = [numbers(k, dtype).tolist() if dtype.is_float else k.tolist() for k in (low, high)]
    some = (count > 0).tolist()
    low, high = (
        [v if present else None for v, present in zip(end, some, strict=True)] for end in ends
    )
    return count.tolist(), low, high, zeros.tolist()
