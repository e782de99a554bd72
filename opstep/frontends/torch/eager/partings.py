"""A difference of two scripts, and its report."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from opstep.differing.elements import Elements
from opstep.frontends.torch.eager.traces import Op, text_of
from opstep.frontends.torch.sources import Frame

ROUNDING = "rounding"
Frames = tuple[Frame | None, Frame | None]


@dataclass
class Parting:
    """The place at which two scripts part. `kind`: ``attribute``, ``only`` (ops of one side alone),
    ``operands`` (others), ``input``, ``random``, ``shape``, ``result``, ``ended`` (one failed),
    ``rounding``; `a`, `b`: the ops. `lines`: what the difference comes from: `setting`, of what was
    built otherwise, else the ops' own lines, or the lines of text that differ.
    """

    kind: str
    message: str
    a: Op | None
    b: Op | None
    lines: Frames
    elements: Elements | None = None
    setting: str = ""

    @property
    def frames(self) -> Frames:
        return self.a and self.a.frame, self.b and self.b.frame


class Setting(NamedTuple):
    """Something that was built or called in two ways. `used`: see `traces.Built`."""

    text: str
    frames: Frames
    used: tuple[int | str | None, int | str | None]

    def is_used(self, *ops: Op | None) -> bool:
        return any(op and used in op.uses for op, used in zip(ops, self.used, strict=True))


@dataclass
class ScriptDifference:
    """`first`: None where no bit differs. `notes`: what differs without an effect, and `settings`,
    of what was built.
    """

    names: tuple[str, str]
    compared: int
    steps: tuple[int, int]
    codes: tuple[int, int]
    first: Parting | None = None
    notes: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)

    @property
    def rounded(self) -> bool:
        return self.first is not None and self.first.kind == ROUNDING

    @property
    def same(self) -> bool:
        """Whether nothing differs but by rounding."""
        return self.first is None or self.rounded


def sizes(op: Op) -> str:
    return " and ".join(f"[{', '.join(map(str, shape))}]" for shape in op.shapes)


def short(op: Op) -> str:
    """``softmax (blocks.0.attn), in the backward``"""
    name = op.name.split(".")[-2 if "." in op.name else 0] + (
        f" ({op.module})" if op.module else ""
    )
    where = {"backward": ", in the backward", "update": ", in the optimizer's step"}
    return name + where.get(op.phase, "") + (f", in step {op.step}" if op.step else "")


def line_of(frame: Frame | None) -> str:
    return f"{os.path.relpath(frame.file)}:{frame.line}" if frame else "?"


def report(found: ScriptDifference) -> str:
    """All of it, the lines first."""
    lines, first, settings = [], found.first, found.settings
    if first is not None:
        for one, f in zip("ab", first.lines, strict=True):
            lines.append(f"{one}: {line_of(f)}: {text_of(f)}" if f else f"{one}: no line")
        lines += [f"  {first.setting}"] * bool(first.setting)
        ops = " and ".join(line_of(f) for f in first.frames if f)
        lines.append(f"  {first.message}" + f" ({ops})" * (first.lines != first.frames))
        if (e := first.elements) is not None:
            at = f"[{', '.join(map(str, e.first))}]" if e.first else "its only element"
            lines.append(f"  {e.differing:,} of {e.of:,} elements differ; at {at} {e.a} and {e.b}")
        settings = [s for s in settings if s != first.setting]
    if found.same:
        what = "nothing but rounding differs" if first else "nothing differs"
        lines.append(f"{what}: {found.compared:,} ops in {max(found.steps)} steps")
    lines += [f"  {note}" for note in found.notes]
    lines += [f"  setting: {text}" for text in settings]
    for one, code in zip(found.names, found.codes, strict=True):
        if code:
            lines.append(f"  {one} ended with exit code {code}")
    return "\n".join(lines)


def record(found: ScriptDifference) -> dict[str, Any]:
    """As JSON can hold it."""
    first = found.first
    whole: dict[str, Any] = asdict(replace(found, first=None))
    whole |= {"same": found.same, "rounded": found.rounded}
    whole |= dict(zip("ab", found.names, strict=True))
    del whole["names"]
    if first is not None:
        whole["first"] = {
            "kind": first.kind, "message": first.message, "setting": first.setting,
            "lines": [f and f._asdict() for f in first.lines],
            "elements": first.elements and first.elements._asdict(),
        }  # fmt: skip
    return whole
