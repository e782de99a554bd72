"""Which tensors' statistics are taken: what `--stats` says, applied to a plan."""

from __future__ import annotations

from collections.abc import Container, Iterable
from fnmatch import fnmatchcase

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.plan.plan import Plan, Run, Step

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
