"""``opstep ws FILE``: a summary, and what to ask next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from shlex import quote
from typing import TYPE_CHECKING, Any

from opstep.api.devices import is_device
from opstep.cli.common import OK, OTHERS_RTOL, amount, console, emit_json, size
from opstep.cli.ws import shown

if TYPE_CHECKING:
    from opstep.trace.workspace.records import TensorRecord
    from opstep.trace.workspace.runs import RecordedRun
    from opstep.trace.workspace.workspace import Workspace

LISTED = 8  # runs, tensors, findings


def show(file: str, as_json: bool) -> int:
    from rich.text import Text

    with shown.workspace(file) as ws:
        runs, tensors = ws.runs, ws.tensors()
        if as_json:
            emit_json(record(ws, runs, tensors))
            return OK
        out = console()
        out.print(headline(ws, runs, tensors))
        if runs:
            out.print()
            out.print(shown.runs_table(runs[-LISTED:]))
            more(out, len(runs), "run", "list runs")
        if tensors:
            out.print()
            out.print(tensors_by_name(tensors))
            more(out, len({t.name for t in tensors}), "name", "list")
        show_findings(out, runs[-LISTED:])
        out.print()
        trained = {c.run for c in ws.checkpoints()}
        for line, what in next_commands(file, runs, tensors, trained):
            text = Text.assemble("  ", (line, "bold"), "  ", (f"# {what}", "dim"))
            out.print(text, soft_wrap=True)  # a line that is broken would be two when it is pasted
    return OK


def headline(ws: Workspace, runs: list[RecordedRun], tensors: list[TensorRecord]) -> Any:
    from rich.text import Text

    kinds = Counter(map(shown.status, runs))
    statuses = ", ".join(f"{n} {status}" for status, n in kinds.items() if status != "done")
    parts = [size(ws.nbytes), amount(len(runs), "run") + (f" ({statuses})" if statuses else "")]
    parts.append(amount(len(tensors), "tensor"))
    return Text.assemble((str(ws.path), "bold"), f": {', '.join(parts)}")


def tensors_by_name(tensors: list[TensorRecord]) -> Any:
    """A row a name: what the last one of it is, and how many there are."""
    from rich.text import Text

    rows = shown.table("tensor", "type", "kind", "size", "kept", right=("size", "kept"))
    named: dict[str, list[TensorRecord]] = {}
    for t in tensors:
        named.setdefault(t.name, []).append(t)
    for name, found in list(named.items())[:LISTED]:
        last = max(found, key=lambda t: t.id)
        kinds = ", ".join(dict.fromkeys(t.kind for t in found))
        rows.add_row(
            Text(name, "bold"), Text(last.type), Text(kinds), size(last.nbytes), f"{len(found):,}×"
        )
    return rows


def show_findings(out: Any, runs: list[RecordedRun]) -> None:
    from rich.text import Text

    found = [(run, finding) for run in reversed(runs) for finding in run.findings]
    if found:
        out.print()
    for run, finding in found[:LISTED]:
        where = f"{finding.file}:{finding.line}: " if finding.file and finding.line else ""
        out.print(
            Text.assemble(
                (run.key, "bold"), f" step {finding.step}: {where}",
                (finding.kind, "bold red"), f": {finding.message}",
            )
        )  # fmt: skip
    more(out, len(found), "finding", 'sql "select * from findings"')


def more(out: Any, count: int, noun: str, verb: str) -> None:
    if count > LISTED:
        out.print(f"… of {amount(count, noun)}: {verb} shows all", style="dim")


def next_commands(
    file: str, runs: list[RecordedRun], tensors: list[TensorRecord], trained: Container[int] = ()
) -> list[tuple[str, str]]:
    """Commands that make sense for this file. `trained`: ids of runs with checkpoints of training,
    whose ops are not recorded.
    """
    me = f"opstep ws {quote(file)}"
    if not runs and not tensors:
        return [(f"opstep run model.opg -i random --workspace {quote(file)}", "record a run in it")]
    found = []
    if last := [r for r in runs if r.id in trained]:
        found.append((f'{me} plot "loss where run={last[-1].key}"', "how the loss went"))
        found.append((f"{me} checkpoints --run {last[-1].key}", "what it can go on from"))
    runs = [r for r in runs if r.id not in trained]
    like = [r for r in runs[:-1] if (r.file, r.graph) == (runs[-1].file, runs[-1].graph)]
    if like:
        others = not (is_device(like[-1].device) and is_device(runs[-1].device))
        rtol = f" {OTHERS_RTOL}" if others else ""
        line = f"{me} compare {like[-1].key} {runs[-1].key}{rtol}"
        found.append((line, "the first op where they differ"))
    if own := [r for r in runs if is_device(r.device)]:
        found.append((f"{me} rerun {own[-1].key}", "the same run again, from this file alone"))
    if runs:
        slowest = f"select name, line, total_ns from slowest_ops where run = {runs[-1].id}"
        line = f'{me} sql "{slowest} order by total_ns desc"'
        found.append((line, "where the time went"))
        line = f'{me} plot "stats.absmax where run={runs[-1].key}"'
        found.append((line, "a picture"))
    if tensors:
        last = tensors[-1]
        line = f"{me} load {quote(last.reference)} -o {quote(f'{last.name}.npy')}"
        found.append((line, "a tensor"))
    return found


def record(ws: Workspace, runs: list[RecordedRun], tensors: list[TensorRecord]) -> dict[str, Any]:
    """The summary as JSON."""
    described = []
    for run in runs:
        findings = [finding._asdict() for finding in run.findings]
        described.append({**shown.run_record(run), "rows": run.counts(), "findings": findings})
    return {
        "path": str(ws.path),
        "bytes": ws.nbytes,
        "runs": described,
        "tensors": [shown.tensor_record(t) for t in tensors],
    }
