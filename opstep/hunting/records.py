"""The findings of a hunt as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opstep.hunting.report import Hunt, headline, infinity_text
from opstep.runtime.nan.findings import Finding, Link, PriorLoss, Where, advice
from opstep.runtime.nan.verdict import Element


def record(hunt: Hunt) -> dict[str, Any]:
    """As JSON can hold it; floats may be NaN and infinite."""
    return {
        "graph": hunt.graph,
        "device": hunt.device,
        "found": hunt.found,
        "step": hunt.step,
        "steps": hunt.steps,
        "replays": hunt.replays,
        "findings": [_finding_of(f, hunt) for f in (*hunt.findings, *hunt.only_masked)],
        "propagated": [
            _link(link) | {"kind": link.kind, "bad": link.bad, "count": link.verdict.count}
            for link in hunt.propagated
            if link.verdict is not None
        ],
        "error": hunt.error.diagnostics[0].message if hunt.error else None,
        "failed": hunt.failed.diagnostics[0].message if hunt.failed else None,
        "unrepeated": hunt.unrepeated,
        "hazards": hunt.hazards,
        "overwritten": hunt.overwritten,
        "until": hunt.until,
        "grown": [{"param": n, "from": a, "to": b} for n, a, b in hunt.grown],
    }


def _finding_of(finding: Finding, hunt: Hunt) -> dict[str, Any]:
    """One finding; of a step of training its phase and rows of the batch."""
    record = finding_record(finding)
    if hunt.trains:
        at = hunt.data_rows
        rows = finding.rows.rows if finding.rows else ()
        record["phase"] = finding.phase
        record["updates"] = (finding.where.target if finding.where else "") or None
        record["rows"] = [
            {"row": r, "data_row": None if at is None else int(at[r]), "notes": list(notes)}
            for r, notes in rows
        ]
    return record


def finding_record(finding: Finding) -> dict[str, Any]:
    """One finding."""
    verdict, left = finding.verdict, finding.unwritten
    record = {
        "kind": finding.kind,
        "bad": finding.bad,
        "message": headline(finding),
        "value": finding.value,
        "type": finding.type,
        "op": finding.op or None,
        "given": finding.given or None,
        **_where(finding),
        "output": finding.output or None,
        "chain": [_link(c) for c in finding.chain],
        "masked_by": [_link(m) for m in finding.masked_by],
        "decided": [_link(m) for m in finding.decided],
        "times": finding.times,
        "last": finding.last or None,
        "before": _cause(finding.before) if finding.before else None,
        "infinity": infinity_text(finding.infinity) if finding.infinity else None,
        "operands": [
            None if o is None else {"name": o.name, "type": str(o.type)} | asdict(o.statistics)
            for o in finding.operands
        ],
    }
    if left is not None:
        record["unwritten"] = {"count": left.count, "first": [list(p) for p in left.first]}
    if verdict is not None:
        record |= {"count": verdict.count, "size": verdict.size, "own": verdict.own}
        record["arrived"] = verdict.arrived
        record["caused"] = [o.name for j in verdict.caused if (o := finding.operands[j])]
        backward = finding.where.backward if finding.where else ""
        record["rules"] = [
            {"rule": text, "elements": n, "advice": advice(text, backward, verdict.elements)}
            for text, n in verdict.rules
        ]
        record["elements"] = [_element(finding, e) for e in verdict.elements]
    return record


def _cause(before: PriorLoss) -> dict[str, Any]:
    return _link(before) | {
        "place": list(before.place),
        "number": before.number,
        "rule": before.text,
    }


def _element(finding: Finding, element: Element) -> dict[str, Any]:
    return {
        "place": list(element.place),
        "value": element.value,
        "rule": element.rule,
        "exact": element.exact,
        "of": [
            {"operand": b.operand, "name": o.name, "place": list(b.place), "value": b.value}
            for b in element.blamed
            if (o := finding.operands[b.operand]) is not None
        ],
    }


def _where(finding: Finding) -> dict[str, Any]:
    where = finding.where or Where("", "", 0, "", "")
    return {
        "graph": where.graph or None,
        "file": where.path or None,
        "line": where.line or None,
        "statement": where.text or None,
        "imported": where.imported or None,
        "calls": where.calls or None,
        "through": _through(where),
        "backward": where.backward or None,
    }


def _link(link: Link) -> dict[str, Any]:
    where = link.where
    record: dict[str, Any] = {"value": link.value, "op": link.op or None}
    record |= {"file": where.path if where else None, "line": where.line if where else None}
    return record | {"through": _through(where) if where else []}


def _through(where: Where) -> list[dict[str, Any]]:
    """The calls that lead there, inner ones first."""
    return [{"file": path, "line": line} for path, line in where.through]
