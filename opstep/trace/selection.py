"""Statistics that are taken: of the tensors that `--stats` names, and beyond the usual ones what
`--stats-also` says.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from opstep.kernels.statistics import details as ops
from opstep.kernels.statistics.details import CHANNEL, Detail
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.plan.plan import Plan, Run, Step
from opstep.runtime.statistics import ENABLED

if TYPE_CHECKING:
    import numpy as np


_NAMED = ("param", "state")


class Selection:
    """``all``, ``outputs``, ``none``, or patterns: ``relu:*,conv1.*,encode/``.

    A pattern is matched with the names of values; with ``OP:`` before it, only with those that this
    op gave (``input:``, ``param:`` and ``state:`` count as ops); with a ``/`` in it, with the whole
    path of a value, ``main/encode:e/h``. ``*``, ``?`` and ``[…]`` mean what they do in a shell.
    """

    WORDS = ("all", "outputs", "none")

    def __init__(self, text: str):
        self.text = text.strip()
        self.patterns = [p.strip() for p in self.text.split(",") if p.strip()]
        if not self.patterns:
            hint = 'give all, outputs, none, or names: "relu:*,conv1.*"'
            raise InputError(Wording(Argument("stats", self.text), " names nothing"), hint=hint)

    def values(self, plan: Plan) -> list[tuple[int, int]]:
        """(step, value) of those that are wanted, in order of the steps.

        Ops that only look at another tensor's bytes, such as reshape, are left out of ``all``.
        """
        if self.text == "none":
            return []
        outputs = set(plan.outputs)
        found = []
        for number, step in ((k, op) for k, s in enumerate(plan.steps) for op in s.members or (s,)):
            if step.op.traits.host or step.op.name in ("assert", "snapshot"):
                continue
            launched = bool(plan.steps[number].launches)
            for value in step.results:
                if self.text == "outputs":
                    selected = value in outputs
                elif self.text == "all":
                    empty = not plan.values[value].type.nbytes  # nothing is launched for it
                    selected = launched or (empty and not step.op.traits.reinterprets)
                else:
                    selected = self._matches(plan, step, value)
                if selected:
                    found.append((number, value))
        return found

    def _matches(self, plan: Plan, step: Step, value: int) -> bool:
        from opstep.trace.describe import frame_path

        name = plan.values[value].name
        return self._named(step.op.name, name, f"{frame_path(plan, step.frame)}/{name}")

    def tensor(self, op: str, name: str) -> bool:
        """Whether the statistics of an input or named tensor are wanted, as steps find it; `op` is
        what it is: ``input``, ``param`` or ``state``.
        """
        if self.text in self.WORDS:
            return self.text == "all"
        return self._named(op, name, name)

    def _named(self, op_name: str, name: str, path: str) -> bool:
        for pattern in self.patterns:
            op, colon, rest = pattern.partition(":")
            if "/" in pattern:
                if fnmatchcase(path, pattern) or fnmatchcase(path, f"*{pattern}*"):
                    return True
            elif colon:
                if fnmatchcase(op_name, op) and fnmatchcase(name, rest):
                    return True
            elif fnmatchcase(name, pattern):
                return True
        return False

    def _tensors(self, plan: Plan) -> list[str]:
        tensors = [("input", plan.values[v].name) for v in plan.inputs]
        tensors += [(kind, b.name) for b in plan.buffers if b.kind == "param" for kind in _NAMED]
        return [name for op, name in tensors if self.tensor(op, name)]

    def complain(self, plans: Iterable[Plan]) -> None:
        """Raises `InputError` where patterns match nothing at all."""
        plans = list(plans)
        if any(self.values(plan) or self._tensors(plan) for plan in plans):
            return
        steps = [(p, op) for p in plans for step in p.steps for op in step.members or (step,)]
        names = {p.values[v].name for p, op in steps for v in op.results}
        ops = {f"{op.op.name}:*" for _, op in steps}
        near = did_you_mean(self.patterns[0], names | ops)
        raise InputError(
            Wording(Argument("stats", self.text), ": no tensor of the graph has such a name"),
            hint=near or "name values, OP:NAME, or all, outputs, none",
        )


def first_reads(plan: Plan, found: Container[int]) -> list[tuple[int, int]]:
    """(step, value) of values that a plan finds: after which step they can be looked at. That is
    the first one that reads them, or, where that one writes over them, the one before it.
    """
    of = {v: v for v in range(len(plan.values)) if v in found}  # and what only reinterprets them
    latest: dict[int, int] = {}  # by stream
    at: dict[int, int] = {}
    for step in plan.steps:
        if step.op.traits.reinterprets and step.operands[0] in of:
            of |= dict.fromkeys(step.results, of[step.operands[0]])
    for instruction in plan.instructions:
        if not isinstance(instruction, Run) or not plan.steps[instruction.step].launches:
            continue
        number, stream = instruction
        step = plan.steps[number]
        for operand in (v for op in step.members or (step,) for v in op.operands):
            if operand is None or operand not in of or of[operand] in at:
                continue
            value = of[operand]
            written = plan.values[value].buffer in step.writes
            if plan.values[value].type.nbytes and (not written or stream in latest):
                at[value] = latest[stream] if written else number
        latest[stream] = number
    return sorted((number, value) for value, number in at.items())


# --- what is taken beyond statistics --------------------------------------------------------------


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
        """Kinds that are taken of such a tensor, each with its attributes."""
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
