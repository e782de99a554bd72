"""A birth that did harm, as a finding: its line, its reason, its operands, and the way there."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from opstep.frontends.assignments import assignment
from opstep.frontends.torch.dims import dtype_of
from opstep.frontends.torch.eager.births import (
    BORN,
    CAME,
    WRITTEN,
    Birth,
    Operand,
)
from opstep.frontends.torch.eager.harm import END, GRADIENT, PARAMETER, Harm
from opstep.frontends.torch.eager.names import Names
from opstep.frontends.torch.eager.ops import LIFTS, plain_name, tensors_in
from opstep.frontends.torch.eager.places import forward_frames, frames
from opstep.frontends.torch.eager.reasons import ARGUMENT, reason_of, wide_results
from opstep.frontends.torch.eager.tensors import INFINITE, NAN, undispatched
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.sources import Frame
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.nan import findings as graph
from opstep.runtime.nan.findings import ORIGIN, Finding, Where
from opstep.runtime.nan.kinds import SILENT
from opstep.runtime.nan.verdict import Element, Verdict

_NODE = re.compile(r"(?:.*::)?(\w+?)(?:Backward\w*)?\d*$")
MOST_CALLS = 8
JUMP, LARGE = 100, 10  # of a parameter's size, in one update
_SUMS = ("add", "sub", "mul", "addcmul", "lerp")  # of finite numbers only too large ones are lost
LATE = "--sync op says which elements, and why: a GPU's op is gone when its flag is read"


@dataclass
class ScriptFinding:
    """`finding`: as of a graph; `frames`: of the script, the innermost first, `module` the path of
    that of the first. `why`: of each cause, in words, the nearest first. `step`: of an
    optimizer; `harm`: in words; `batch`: likewise, "" where no loader gave one.
    """

    finding: Finding
    phase: str
    harm: str
    step: int
    frames: list[Frame]
    module: str = ""
    derivative_of: str = ""  # an op of the forward
    how: str = BORN
    why: list[str] = field(default_factory=list)
    batch: str = ""
    times: int = 1
    birth: Birth | None = field(default=None, repr=False)

    @property
    def place(self) -> tuple[str, int]:
        return self.frames[0][:2] if self.frames else ("", 0)


def finding_of(harm: Harm, names: Names, batch: str) -> ScriptFinding:
    """All that is known of the birth that is to blame."""
    birth = harm.birth
    own = frames_of(birth)
    module = names.module(birth.place.module)
    if not module and birth.made:
        module = names.module(birth.made[0].module)
    is_told = birth.verdict is not None and birth.verdict.kind not in SILENT
    reason = reason_of(birth) if birth.how == BORN and not is_told else None
    return ScriptFinding(
        _finding(birth, own, reason, names),
        birth.place.phase,
        _harm(harm, names),
        birth.step,
        own,
        module,
        _derivative(birth, own),
        birth.how,
        [*_unwritten(birth, names), *birth.trail, *_causes(birth, reason, names)],
        batch,
        birth.times,
        birth,
    )


def frames_of(birth: Birth) -> list[Frame]:
    place = birth.place
    if place.phase == "backward":
        return forward_frames(place.stack, birth.made) or frames(place.stack)
    return frames(place.stack)


def _derivative(birth: Birth, own: list[Frame]) -> str:
    """The op of the forward whose derivative it is; "" where the line is the backward's own."""
    if birth.place.phase != "backward" or frames(birth.place.stack, inside_engine=True):
        return ""
    if birth.made and birth.made[0].op:
        return birth.made[0].op
    found = _NODE.match(birth.place.node.name)
    return found[1].lower() if found else birth.place.node.name


def _source(frame: Frame) -> str:
    return linecache.getline(frame.file, frame.line).strip()


def _where(birth: Birth, own: list[Frame]) -> Where | None:
    if not own:
        return None
    text = _source(own[0])
    backward = text if _derivative(birth, own) else ""
    calls = " / ".join(f"{f.function} {f.file}:{f.line}" for f in own[:MOST_CALLS])
    through = tuple((f.file, f.line) for f in own[1:])
    return Where(
        "", own[0].file, own[0].line, text, "", calls, backward, birth.place.phase, "", through
    )


def _finding(birth: Birth, own: list[Frame], reason: Finding | None, names: Names) -> Finding:
    value = _value(birth, own)
    type = _type(birth.dtype, birth.shape) if birth.dtype else None
    type = "" if type is None else str(type)
    given = ""
    if birth.how == CAME:
        given = next((_name(o, names) for o in birth.operands), "") or "what came in"
    if reason is not None and reason.verdict is not None:
        verdict = reason.verdict
        if birth.verdict is not None and birth.verdict.elements:  # PyTorch's values, not ours
            values = {e.place: e.value for e in birth.verdict.elements}
            ours = [e for e in verdict.elements if e.place in values]
            elements = tuple(e._replace(value=values[e.place]) for e in ours)
            verdict = birth.verdict._replace(elements=elements or birth.verdict.elements)
        elif birth.verdict is None:
            verdict = verdict._replace(
                kind=birth.kind, count=birth.own, size=_size(birth.shape), own=birth.own,
                nan=birth.nan,
            )  # fmt: skip
        arguments = _argument_names(birth, names)
        operands = tuple(_renamed(o, arguments) for o in reason.operands)
        if verdict.kind == "index":
            verdict = _index_verdict(verdict, operands)
        value = value if reason.type == type else reason.value
        return Finding(value, birth.op, _where(birth, own), ORIGIN, verdict, operands, given, type)
    shown = birth.operands if birth.how != WRITTEN else ()
    operands = tuple(_operand(o, names) for o in shown)
    return Finding(
        value, birth.op, _where(birth, own), ORIGIN, _verdict(birth), operands, given, type
    )


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _value(birth: Birth, own: list[Frame]) -> str:
    """The variable that the line assigns; of a backward, the gradient."""
    if birth.place.phase == "backward":
        return "grad"
    found = assignment(*own[0][:2]) if own else None
    targets = [t for t in found.targets if t] if found else []
    name = "tensor" if birth.op in LIFTS else plain_name(birth.op)
    outermost = found.operation if found else ""
    is_last = outermost and (outermost in name or name in outermost)
    return targets[0] if len(targets) == 1 and is_last else name


def _type(dtype: Any, shape: tuple[int, ...]) -> TensorType | None:
    try:
        return TensorType(dtype_of(dtype), tuple(shape))
    except (OpstepError, Untranslatable):  # complex
        return None


def _name(operand: Operand, names: Names) -> str:
    return names.tensors.get(operand.storage) or documented(operand.argument)


def documented(argument: str) -> str:
    """Its name on PyTorch's pages."""
    return "input" if argument == "self" else argument


def _argument_names(birth: Birth, names: Names) -> list[str]:
    """Of the tensors that the op was given, in order; of an op on lists those of one element."""
    found: list[str] = []
    for k, argument in enumerate(birth.arguments):
        own = [_name(o, names) for o in birth.operands if o.index == k]
        name = documented(birth.target._schema.arguments[k].name)
        own = own or [name for _ in tensors_in(argument)]
        is_list = birth.op.startswith("_foreach_") and len(own) > 1
        found += own[birth.result :][:1] if is_list else own
    return found


def _renamed(operand: graph.Operand | None, names: list[str]) -> graph.Operand | None:
    """With the argument's or the parameter's name in place of the placeholder's."""
    found = ARGUMENT.fullmatch(operand.name) if operand is not None else None
    if operand is None or found is None or int(found[1]) >= len(names):
        return operand
    return replace(operand, name=names[int(found[1])])


def _index_verdict(verdict: Verdict, operands: tuple[graph.Operand | None, ...]) -> Verdict:
    """PyTorch gives no result where our op gives NaN: the indices are all there is."""
    blamed: dict[str, None] = {}
    for b in (b for e in verdict.elements for b in e.blamed):
        operand = operands[b.operand]
        if operand is not None and not operand.type.dtype.is_float:
            at = f"[{', '.join(map(str, b.place))}]" if b.place else ""
            blamed[f"{operand.name}{at} = {b.value:g}"] = None
    text = f"{verdict.rules[0][0]}: {', '.join(blamed)}" if blamed else verdict.rules[0][0]
    return verdict._replace(rules=((text, verdict.own),), elements=())


def _operand(operand: Operand, names: Names) -> graph.Operand | None:
    from opstep.frontends.torch.eager.figures import statistics_of

    type = _type(operand.dtype, operand.shape)
    if operand.tensor is None or type is None:
        return None
    with undispatched():
        return graph.Operand(_name(operand, names), type, statistics_of(operand.tensor))


def _verdict(birth: Birth) -> Verdict:
    """The verdict where no op of ours says why: whether f64 could hold it, and what came in."""
    if birth.verdict is not None:
        return birth.verdict
    if birth.dtype is None:  # of a GPU's, which nobody waited for
        return Verdict(birth.kind, 0, 0, 0, ((LATE, 0),))
    value = float("nan") if birth.level == NAN else float("inf")
    text, exact = "", None
    if birth.how == WRITTEN:
        text = "written by the script"
    elif birth.how == CAME:
        text = "no op wrote it"
    else:
        wide = wide_results(birth)
        if wide is not None and bool(torch.isfinite(wide[birth.first[0]])):
            exact = float(wide[birth.first[0]].real)
            text = f"overflow of {str(birth.dtype).removeprefix('torch.')}"
        elif any(o.level == INFINITE for o in birth.operands):
            text = "infinities among the operands"
        elif birth.op.rstrip("_").removeprefix("_foreach_") in _SUMS and birth.dtype is not None:
            text = f"overflow of {str(birth.dtype).removeprefix('torch.')}"
        else:
            outside = "its operands are outside the range in which it has a value"
            text = outside if wide is not None else "its operands are not known any more"
    size = _size(birth.shape)
    values = birth.values or (value,) * len(birth.first)
    elements = tuple(
        Element(p, v, text, exact, ()) for p, v in zip(birth.first, values, strict=False)
    )
    rules = ((text, birth.own),)
    return Verdict(birth.kind, birth.own, size, birth.own, rules, elements, nan=birth.nan)


def _unwritten(birth: Birth, names: Names) -> list[str]:
    """Operands that are in memory which `torch.empty` gave and nothing has written."""
    found = []
    for o in birth.operands:
        own = frames(o.empty_at) if o.empty_at is not None else []
        if own:
            at = f"{own[0].file}:{own[0].line}"
            found.append(
                f"{_name(o, names)} is memory that torch.empty gave at {at}: nothing wrote it"
            )
    return found


def _causes(birth: Birth, reason: Finding | None, names: Names) -> list[str]:
    """A line on each infinity that it was made of; what a mask writes makes nothing overflow."""
    rules = reason.verdict.rules if reason is not None and reason.verdict is not None else ()
    is_overflow = bool(rules) and rules[0][0].startswith("overflow")
    causes = [c for c in birth.causes if not (is_overflow and c.how == WRITTEN)]
    return [_cause(c, names) for c in causes[:3]]


def _cause(birth: Birth, names: Names) -> str:
    own = frames_of(birth)
    at = f" at {own[0].file}:{own[0].line}" if own else ""
    if birth.how == WRITTEN:
        how = "came in" if birth.op in LIFTS else "is written"
        return f"the infinity {how}{at}: {_source(own[0])}" if own else f"it {how}"
    if birth.how == CAME:
        return f"the infinity was in {_name(birth.operands[0], names)}" if birth.operands else ""
    return f"the infinity was born in {birth.op}{at}"


def grown(sizes: Sequence[tuple[int, float, float]], names: Names) -> list[str]:
    """The parameter that one update changed most, if that is why numbers are too large. `sizes`: of
    each storage the largest magnitude before the last update and after.
    """
    jumps = [
        (now / before, names.tensors[storage], before, now) for storage, before, now in sizes
        if storage in names.tensors and before and now >= max(LARGE, JUMP * before)
    ]  # fmt: skip
    if not jumps:
        return []
    _, name, before, now = max(jumps)
    more = f", and {len(jumps) - 1:,} more" if len(jumps) > 1 else ""
    text = f"{name} grew from {before:.3g} to {now:.3g} in one update{more}: clip gradients, or"
    return [f"{text} lower the learning rate"]


def _harm(harm: Harm, names: Names) -> str:
    if harm.birth.verdict is not None:
        return ""
    bad = "NaN" if harm.level == NAN else "infinite"
    at = frames(harm.place.stack)
    place = (
        f", {at[0].file}:{at[0].line}" if at and "where the script failed" not in harm.sink else ""
    )
    name = names.tensors.get(int(harm.label), "") if harm.label.isdigit() else harm.label
    if harm.sink == GRADIENT:
        return f"the gradient of {name or 'a parameter'} is {bad} at the optimizer's step{place}"
    if harm.sink == PARAMETER:
        return f"{name or 'a parameter'} is {bad} after the optimizer's step{place}"
    if harm.sink == END:
        return f"{name or 'a parameter'} is {bad} at the end of the script"
    return f"{harm.sink} is {bad}{place}"
