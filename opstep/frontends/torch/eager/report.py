"""Findings of a script, in words and as plain data: the line and its cause come first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from opstep.frontends.torch.eager.births import BORN, CAME, COMPILED, WRITTEN
from opstep.frontends.torch.eager.findings import ScriptFinding
from opstep.frontends.torch.eager.ops import LIFTS, plain_name
from opstep.frontends.torch.sources import Frame
from opstep.hunting.records import finding_record
from opstep.hunting.report import WORDS, equation, is_literal, operand_text, verdict_lines
from opstep.runtime.nan.findings import advice

PHASES = {"backward": "in the backward", "update": "in the optimizer's step"}


def report(found: ScriptFinding, is_live: bool = False) -> str:
    """All of it. `is_live`: the script goes on, so that what more comes of it is not known."""
    finding, verdict = found.finding, found.finding.verdict
    file, line = found.place
    lines = []
    if finding.where is not None:
        lines.append(f"{short(file)}:{line}: {finding.where.text}")
    lines.append(headline(found))
    if found.frames:
        lines.append(f"  {stack(found.frames, found.module)}")
    if verdict is not None:
        lines += verdict_lines(finding, verdict)
    shown = [o for o in finding.operands if o is not None and not is_literal(o)]
    lines += [f"  {operand_text(o)}" for o in shown]
    lines += [f"  {nearby(text)}" for text in found.why]
    at = f"step {found.step}{f', {found.batch}' if found.batch else ''}"
    lines.append(f"  {at}: {nearby(found.harm)}" if found.harm else f"  {at}")
    if verdict is not None and not verdict.own and found.how == BORN:
        lines.append(f"  {verdict.rules[0][0]}")
    if found.times > 1:
        others = "" if is_live else "; the others did no harm"
        lines.append(f"  it was born {found.times:,} times on this line{others}")
    backward = finding.where.backward and plain_name(found.derivative_of) if finding.where else ""
    rules = verdict.rules if verdict is not None and found.how == BORN else ()
    if verdict is not None and rules and (text := advice(rules[0][0], backward, verdict.elements)):
        lines.append(f"  help: {text}")
    return "\n".join(lines)


def headline(found: ScriptFinding) -> str:
    """One line: what, in which op, why, with the first element."""
    finding, verdict = found.finding, found.finding.verdict
    bad = WORDS.get(finding.bad, finding.bad)
    if found.how == WRITTEN and finding.op in LIFTS and not finding.type.endswith("[]"):
        return f"{bad} in the data that is made a tensor here"
    if found.how == WRITTEN:
        return f"{bad} written here" + f", by {plain_name(finding.op)}" * (finding.op not in LIFTS)
    if found.how == CAME:
        by = f", before {plain_name(finding.op)} took it in here" if finding.op else ""
        seen = "that was seen" if COMPILED in found.why else "of PyTorch's"
        return f"{bad} was in {finding.given}{by}: no op {seen} wrote it"
    where, op = PHASES.get(found.phase, ""), plain_name(finding.op)
    if found.derivative_of:
        where = f"in the backward of {plain_name(found.derivative_of)}"
    born = f"{bad}{' born' * (finding.bad in WORDS)} {f'{where}, ' if where else ''}in {op}"
    if verdict is None or not verdict.own:
        return born
    why = verdict.rules[0][0] if verdict.rules else "no rule is known"
    example = f" ({equation(finding, verdict.elements[0])})" if verdict.elements else ""
    return f"{born}: {why}{example}"


def stack(frames: list[Frame], module: str) -> str:
    """``Block.attend (blocks.0) charlm.py:34 / LM.forward :50 / main :59``"""
    parts, last = [], ""
    left = len(frames) - MOST_FRAMES
    shown = [*frames[: MOST_FRAMES // 2], *frames[-MOST_FRAMES // 2 :]] if left > 0 else frames
    for k, f in enumerate(shown):
        if left > 0 and k == MOST_FRAMES // 2:
            parts.append(f"… {left} more")
        file = "" if f.file == last else short(f.file)
        last = f.file
        inside = f" ({module})" if module and not k else ""
        parts.append(f"{f.function}{inside} {file}:{f.line}")
    return " / ".join(parts)


MOST_FRAMES = 8


def short(file: str) -> str:
    """Relative to this folder, if it is within."""
    try:
        here = os.getcwd() + os.sep
    except OSError:  # the script has removed it
        return file
    return file.removeprefix(here) if file.startswith(here) else file


def nearby(text: str) -> str:
    """With the files of this folder relative to it."""
    try:
        return text.replace(os.getcwd() + os.sep, "")
    except OSError:
        return text


def record(found: ScriptFinding) -> dict[str, Any]:
    """As JSON can hold it."""
    return finding_record(found.finding) | {
        "message": headline(found),
        "phase": found.phase,
        "step": found.step,
        "how": found.how,
        "module": found.module or None,
        "derivative_of": found.derivative_of or None,
        "harm": found.harm,
        "causes": found.why,
        "batch": found.batch or None,
        "times": found.times,
        "frames": [
            {"file": str(Path(f.file)), "line": f.line, "function": f.function}
            for f in found.frames
        ],
    }
