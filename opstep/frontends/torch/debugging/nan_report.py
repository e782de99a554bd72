"""Findings as the editor's view of NaN reports reads them: the op that made it, its operands, and
the ops that made the infinities that it was given.
"""

from __future__ import annotations

from typing import Any

import torch

from opstep.frontends.torch.debugging import watching
from opstep.frontends.torch.eager.births import BORN, Birth
from opstep.frontends.torch.eager.findings import (
    ScriptFinding,
    _source,
    _type,
    documented,
)
from opstep.frontends.torch.eager.harm import BIRTH
from opstep.frontends.torch.eager.ops import plain_name
from opstep.frontends.torch.eager.report import headline, nearby, report, stack
from opstep.frontends.torch.eager.tensors import readable
from opstep.hunting.records import finding_record

MOST_CAUSES = 3  # as in the report's text


def of_finding(found: ScriptFinding) -> dict[str, Any]:
    """Of the one that the script stands at."""
    birth = found.birth
    links = [_link(found)]
    causes = birth.causes[:MOST_CAUSES] if birth is not None else ()
    links += [_link(watching.finding(cause)) for cause in causes]
    return {"found": True, "text": report(found, is_live=True), "links": links}


def of_tensor(t: Any) -> dict[str, Any]:
    """Of any tensor of the script."""
    if not isinstance(t, torch.Tensor) or not readable(t):
        raise ValueError("it is no tensor of floats whose NaNs are followed")
    if t.isfinite().all():
        return {"found": False, "text": "it is finite", "links": []}
    found = watching.origin(t)
    if found is None:
        raise ValueError("its NaNs came before ops were watched, or from what no op wrote")
    return of_finding(found)


def _link(found: ScriptFinding) -> dict[str, Any]:
    finding, birth = finding_record(found.finding), found.birth
    kept = {k: finding[k] for k in ("bad", "type", "caused", "rules", "elements") if k in finding}
    verdict = found.finding.verdict
    counts: dict[str, Any] = {}
    if verdict is not None and verdict.own:
        counts = {"count": verdict.own, "born": verdict.own, "size": verdict.size}
        counts |= {"nan": verdict.nan if verdict.kind == "nan" else 0}
    return {
        "kind": "origin" if found.how == BORN else "given", "name": finding["value"],
        "text": headline(found), "op": plain_name(found.finding.op), **kept, **counts,
        **_place(found.frames, finding["backward"]),
        "operands": _operands(finding["operands"], birth), "notes": _notes(found),
        "here": found is watching.latest,
    }  # fmt: skip


def _place(frames: list[Any], backward: Any) -> dict[str, Any]:
    """`backward`: whether the op is part of the derivative of what stands there."""
    if not frames:
        return {}
    first, *others = frames
    return {
        "source": {"path": first.file, "name": first.file.rpartition("/")[2]},
        "line": first.line, "backward" if backward else "statement": _source(first),
        "through": [{"path": f.file, "line": f.line} for f in others],
    }  # fmt: skip


def _notes(found: ScriptFinding) -> list[str]:
    """All that the links do not have: they have the ops that made infinities."""
    where = stack(found.frames, found.module) if len(found.frames) > 1 or found.module else ""
    at = f"step {found.step}{f', {found.batch}' if found.batch else ''}"
    times = f"born {found.times:,} times on this line" if found.times > 1 else ""
    why = [text for text in found.why if not text.startswith("the infinity")]
    harm = "" if found.harm.startswith(BIRTH) else found.harm
    notes = [f"in {where}" if where else "", *why, harm, at, times]
    return [nearby(note) for note in notes if note]


def _operands(records: list[Any], birth: Birth | None) -> list[dict[str, Any]]:
    """By the numbers that elements know them by. Those that are kept can be looked at."""
    given = birth.operands if birth is not None else ()
    found = []
    for number, record in enumerate(records):
        if record is None:
            continue
        same = [
            k for k, o in enumerate(given)
            if o.tensor is not None and str(_type(o.dtype, o.shape)) == record["type"]
        ]  # fmt: skip
        named = [k for k in same if documented(given[k].argument) == record["name"]]
        one = {"operand": number, "name": record["name"], "type": record["type"]}
        if birth is not None and len(only := named or same) == 1:
            one["memoryReference"] = f"operand:{birth.order}.{only[0]}"
        found.append(one)
    return found
