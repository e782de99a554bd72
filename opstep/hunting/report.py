"""The findings of a hunt, and the report of them in words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opstep.runtime.ir.wording import Argument, Words, in_python
from opstep.runtime.nan.batch import TOLD, BatchRows
from opstep.runtime.nan.findings import Finding, Link, Operand, PriorLoss, Where, advice
from opstep.runtime.nan.verdict import Element, Verdict

if TYPE_CHECKING:
    import numpy as np

    from opstep.runtime.ir.diagnostics import OpstepError

ELEMENTS = 3  # shown in words, of each finding
LINKS = 8  # of its way to an output
FINDINGS = 6  # shown in words; the others are counted
GROWN = 4  # params
MASKED = 6  # likewise of those that no output shows
OVERWRITTEN = (
    "these results were bad; which elements, and why, is not known, for the inputs were changed in "
    "place before the step could be replayed:"
)
PHASES = {
    "data": "the batch", "state": "what it began with", "forward": "the forward",
    "backward": "the backward", "update": "the update",
}  # fmt: skip
WORDS = {"nan": "NaN", "inf": "infinity"}


@dataclass(repr=False)
class Hunt:
    """The outcome of a hunt. `step`: the bad one, None where no NaN or infinity came out of any.

    `findings`: origins and elements never written; `masked`: roots that no output shows;
    `intended`: infinities that the program writes or is given and that do no harm, those with a
    `chain` come out; and those marked as wanted; `propagated`: values of the bad step that only
    carry what came in. `unrepeated`: results that had NaNs at full speed, and have none when the
    step is replayed op by op: memory that was used again too early, or an op that gives other bits
    each time. `hazards` then says what is known of that. `overwritten`: results that had NaNs at
    full speed, in a step that nobody can replay, for its inputs were changed before that was seen;
    then that step is one from `step` to `until`. `late`: it was found when later steps had begun.
    `steps`: how many were run; `replays`: how many were replayed. `failed`: the assert that failed
    in the bad step; `inputs`: those of that step. `trains`: the graph is a step of training;
    `data_rows`: the rows of the data that were the batch of the bad step. `grown`: params that are
    far larger than when the run began, the largest magnitudes then and before the bad step. `own`:
    what came out and is the program's own, of all steps, by `note_own`; `unseen`: the steps in
    which more came out in these places, and that were not replayed.
    """

    graph: str
    device: str
    step: int | None = None
    findings: list[Finding] = field(default_factory=list)
    masked: list[Finding] = field(default_factory=list)
    intended: list[Finding] = field(default_factory=list)
    propagated: list[Link] = field(default_factory=list)
    unrepeated: list[str] = field(default_factory=list)
    hazards: list[str] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)
    until: int | None = None
    late: bool = False
    error: OpstepError | None = None  # what then ended the step, such as a loop past its limit
    failed: OpstepError | None = None
    steps: int = 0
    replays: int = 0
    state: dict[str, np.ndarray] = field(default_factory=dict)  # named tensors before the bad step
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    kinds: str = "nan,inf"
    wanted: tuple[str, ...] = ()
    trains: bool = False
    data_rows: Sequence[int] | None = None
    grown: tuple[tuple[str, float, float], ...] = ()
    own: dict[str, bool] = field(default_factory=dict)
    unseen: int = 0

    @property
    def found(self) -> bool:
        """Whether something is wrong."""
        return bool(self.findings or self.unrepeated or self.overwritten)

    @property
    def only_masked(self) -> list[Finding]:
        """Those of `masked` that are not findings: `hunt` may be asked to take them as such."""
        return [m for m in self.masked if not any(m is f for f in self.findings)]

    @property
    def first(self) -> Finding | None:
        """The one that the others may come from."""
        return self.findings[0] if self.findings else None

    def __repr__(self) -> str:
        flags = ", ".join([*self.unrepeated, *self.overwritten])
        summary = headline(self.findings[0]) if self.findings else flags
        what = f"step {self.step}: {summary}" if self.found else f"{self.steps:,} steps, nothing"
        return f"<Hunt {self.graph}: {what}>"

    def __str__(self) -> str:
        return self.report()

    def report(self) -> str:
        """In words."""
        return report(self)


# --- in words -------------------------------------------------------------------------------------


def report(hunt: Hunt, words: Words = in_python) -> str:
    """All of it, the first finding first; arguments in the words of a door."""
    lines = [_heading(hunt)]
    first = next((f for f in hunt.findings if f.operands), None)
    helped: set[str] = set()
    for k, finding in enumerate(hunt.findings[:FINDINGS]):
        lines += ["", *_finding_lines(finding, finding is first, words)]
        if finding.rows is not None:
            lines += [f"  {text}" for text in _rows(finding.rows, hunt.data_rows)]
        source = _source(finding, hunt.findings[:k])
        if source is not None:
            lines.append(f"  it follows from {source.value}, above: mend that first")
        elif (text := _advice(finding)) and text not in helped:
            helped.add(text)
            lines.append(f"  help: {text}")
    if len(hunt.findings) > FINDINGS:
        lines += ["", f"and {len(hunt.findings) - FINDINGS:,} more, in other lines"]
    if hunt.grown:
        grown = ", ".join(f"{n} from {a:.3g} to {b:.3g}" for n, a, b in hunt.grown[:GROWN])
        lines += ["", f"before this step, since the run began, params had grown: {grown}"]
    if hunt.failed is not None:
        problem = hunt.failed.diagnostics[0]
        location = ""
        if problem.source is not None and problem.span is not None:
            location = (
                f" ({_file(problem.source.path)}:{problem.source.locate(problem.span.start)[0]})"
            )
        lines += ["", f"then {problem.message}{location}"]
    if hunt.error is not None:
        lines += ["", f"then the step ended: {hunt.error.diagnostics[0].message}"]
    if hunt.unrepeated:
        lines += ["", *_unrepeated(hunt)]
    if hunt.overwritten:
        lines += ["", OVERWRITTEN, *[f"  {text}" for text in hunt.overwritten]]
    shown = hunt.only_masked
    lines += [masked_line(f) for f in shown[:MASKED]]
    if len(shown) > MASKED:
        lines.append(f"masked: {len(shown) - MASKED:,} more, in other lines")
    return "\n".join(lines)


def masked_line(finding: Finding) -> str:
    """One line on what no output shows."""
    by = f", masked by {_links(finding.masked_by)}" if finding.masked_by else ""
    if finding.decided:
        return f"masked: {headline(finding)}; it decides {_links(finding.decided)}{by}"
    return f"masked: {headline(finding)}; no output shows it{by}"


def _links(links: tuple[Link, ...]) -> str:
    return ", ".join(dict.fromkeys(f"{m.op} ({_line(m)})" for m in links))


def note_own(own: dict[str, bool], intended: Iterable[Finding]) -> None:
    """Adds the sources of what came out and is the program's own, each with whether it is NaN."""
    for f in intended:
        if f.chain and not f.saved:
            own[_place(f)] = own.get(_place(f), False) or f.bad == "nan"


def nothing_but(own: Mapping[str, bool], whose: str, unseen: int, one: str = "step") -> str:
    """The words for a run of which nothing came out but the program's `own`, as far as steps were
    looked into.
    """
    comma = "" if any(own.values()) else ","
    text = f"no NaN{comma} and no infinity but {whose} ({', '.join(own)}){comma} came out"
    several = f"1 more {one}" if unseen == 1 else f"{unseen:,} more {one}s"
    more = f"; there were some at these places in {several}, not looked into"
    return text + more * bool(unseen)


def infinity_text(finding: Finding) -> str:
    """An infinity's kind and its source."""
    place = _place(finding)
    given = finding.given or f"{finding.op} {finding.value}"
    return given if place == given else f"{given} ({place})"


def _place(finding: Finding) -> str:
    """Its line; of what was given its name."""
    first = next((c for c in finding.chain if c.where is not None), None)
    if finding.given.startswith(("literal", "constant")) and first is not None:
        return _line(first)
    return finding.given or _line(finding)


def _heading(hunt: Hunt) -> str:
    if not hunt.found:
        what = "1 step" if hunt.steps == 1 else f"{hunt.steps:,} steps"
        if hunt.kinds != "nan,inf":
            return f"{hunt.graph}: {what}, nothing found of {hunt.kinds}"
        none = "no NaN and no infinity but those wanted" if hunt.wanted else "no NaN or infinity"
        if hunt.own:
            text = nothing_but(hunt.own, "what is written or given", hunt.unseen)
            return f"{hunt.graph}: {what}, {text}"
        return f"{hunt.graph}: {what}, {none} came out"
    if hunt.until is not None and hunt.until != hunt.step:
        return f"{hunt.graph}: a step from {hunt.step} to {hunt.until} is bad"
    part = f", first in {PHASES[hunt.first.phase]}" if hunt.trains and hunt.first else ""
    return f"{hunt.graph}: step {hunt.step} is bad{part}"


def headline(finding: Finding, example: bool = True) -> str:
    """One line: what, where, why; with an `example`, the first element."""
    at = f" at {location(finding)}" if finding.where else ""
    if finding.unwritten is not None:
        count, size = finding.unwritten.count, finding.unwritten.node.type.size
        return f"{finding.op} never wrote {count:,} of {size:,} elements of {finding.value}{at}"
    verdict = finding.verdict
    assert verdict is not None
    bad = WORDS.get(finding.bad, finding.bad)
    if finding.over_ranks:
        return f"{bad} came from {finding.given} over {finding.op} {finding.value}{at}"
    if finding.given:
        what = "NaN" if finding.bad == "nan" else "infinite"
        if finding.given.startswith("literal"):
            return f"{finding.given} is {what}"
        return f"{finding.given} has {verdict.count:,} of {verdict.size:,} elements {what}"
    rule = verdict.rules[0][0] if verdict.rules else "no rule is known"
    first = ""
    if verdict.elements and example:
        first = f" ({equation(finding, verdict.elements[0])})"
    born = f"{bad} born in" if finding.bad in WORDS else f"{bad} in"
    return f"{born} {finding.op} {finding.value}{at}: {rule}{first}"


def location(finding: Finding) -> str:
    """``features [i=3], model.opg:12, from model.py:40``"""
    where = finding.where
    assert where is not None
    parts = [where.graph]
    if where.backward:
        parts.append(f"in the backward of `{where.backward}`")
    if where.target:
        parts.append(f"in the update of {where.target}")
    if _is_unseen(where):
        parts.append(where.imported)
    else:
        if where.path:
            parts.append(f"{where.path}:{where.line}")
        if where.imported:
            parts.append(f"from {where.imported}")
    return ", ".join(parts)


def _is_unseen(where: Where) -> bool:
    """Whether its text was made in memory from lines that are known, as PyTorch's graphs are."""
    return bool(where.imported) and not os.path.exists(where.path)


def _finding_lines(finding: Finding, first: bool, words: Words = in_python) -> list[str]:
    lines = [f"{finding.kind}: {headline(finding, False)}"]
    if finding.where:
        lines.append(f"  {finding.where.text}")
        if finding.where.calls:
            lines.append(f"  called: {finding.where.calls}")
    if finding.times > 1:
        lines.append(f"  {finding.times:,} times, this is the first; the last: {finding.last}")
    if finding.verdict is not None:
        lines += verdict_lines(finding, finding.verdict)
    if finding.within is not None:
        lines.append(f"  within {finding.op}: {finding.within.call} {finding.within.verb}")
    if finding.infinity is not None:
        lines.append(f"  the infinity is from: {infinity_text(finding.infinity)}")
    if finding.before is not None:
        lines.append(f"  before it: {_prior_loss(finding.before)}")
    if finding.unwritten is not None:
        elements = ", ".join(_index(p) for p in finding.unwritten.first[:ELEMENTS])
        lines.append(f"  the first: {finding.value}{elements}")
    if first:
        shown = [o for o in finding.operands if o is not None and o.name[:1] not in "0123456789-"]
        lines += [f"  {operand_text(o)}" for o in shown]
    if len(finding.chain) > 1:
        output = f"{finding.output}, saved for the backward" if finding.saved else finding.output
        lines.append(f"  reaches {output}: {_path(finding.chain[1:])}")
    elif finding.chain:
        what = "saved for the backward" if finding.saved else "an output"
        sent = finding.output.startswith("other ranks")
        lines.append(f"  reaches {finding.output}" if sent else f"  {finding.output} is {what}")
    if finding.decided:
        lines.append(f"  decides {_links(finding.decided)}")
    if finding.intended and finding.chain:
        argument = Argument("wanted", [finding.output])
        lines.append(f"  if that is as it should be: {words(argument)}")
    return lines


def _source(finding: Finding, before: Sequence[Finding]) -> Finding | None:
    """One of those before it on whose way it lies: its NaN is of what was born there."""
    if finding.verdict is None or not finding.verdict.caused:
        return None  # other elements than those that came
    at = (finding.value, finding.where)
    return next((f for f in before if at in [(c.value, c.where) for c in f.chain[1:]]), None)


def _advice(finding: Finding) -> str:
    """Advice against the rule that most elements broke."""
    if finding.verdict is None or not finding.verdict.rules or finding.given:
        return ""
    backward = finding.where.backward if finding.where else ""
    return advice(finding.verdict.rules[0][0], backward, finding.verdict.elements)


def _rows(rows: BatchRows, data_rows: Sequence[int] | None) -> Iterator[str]:
    """The rows of the batch that it comes from."""
    for number, notes in (r for r in rows.rows if r.notes or len(rows.rows) <= TOLD):
        of_data = f" (row {data_rows[number]:,} of the data)" if data_rows is not None else ""
        noted = f": {', '.join(notes)}" if notes else ""
        yield f"row {number} of the batch{of_data}{noted}"
    if len(rows.rows) > TOLD:
        first = ", ".join(str(r.row) for r in rows.rows[:TOLD])
        yield f"from {len(rows.rows):,} of {rows.size:,} rows of the batch: {first}, …"


def _prior_loss(before: PriorLoss) -> str:
    number = f"{before.value}{_index(before.place)} = {before.number:g}"
    return f"{number}, {before.op} ({_line(before)}): {before.text}"


def _path(links: tuple[Link, ...]) -> str:
    """Each op of the way, those of a loop once."""
    way = list(dict.fromkeys(f"{c.op} {c.value} ({_line(c)})" for c in links))
    count = len(way)
    if count > LINKS:
        way[LINKS // 2 : -LINKS // 2] = [f"… {count - LINKS:,} more …"]
    more = f", {len(links):,} ops with those that come again" if count < len(links) else ""
    return " -> ".join(way) + more


def verdict_lines(finding: Finding, verdict: Verdict) -> list[str]:
    lines = []
    if verdict.own and not finding.given and verdict.size > 1 and verdict.elements:
        was = "was" if verdict.own == 1 else "were"
        what = f"{was} born here" if finding.bad in WORDS else f"{was} lost this way"
        own = f"{verdict.own:,} of {verdict.size:,} elements of {finding.value} {what}"
        if verdict.arrived is not None and verdict.arrived < verdict.own:
            comes = "comes" if verdict.arrived == 1 else "come"
            own += f", {verdict.arrived:,} of them {comes} out"
        rules = ", ".join(f"{text} ({n:,})" for text, n in verdict.rules)
        if len(verdict.rules) > 1:
            examined = (
                "" if verdict.explained >= verdict.own else f"of {verdict.explained:,} asked, "
            )
            own += f": {examined}{rules}"
        lines.append(f"  {own}")
    for element in verdict.elements[:ELEMENTS]:
        lines.append(f"    {equation(finding, element)}")
    return lines


def is_literal(operand: Operand) -> bool:
    """Whether its name is its value, rather than such as that of the parameter ``0.weight``."""
    try:
        float(operand.name)
    except ValueError:
        return False
    return True


def equation(finding: Finding, element: Element) -> str:
    """``lg[3, 17] = nan of h[3, 17] = -0.0013``"""
    text = f"{finding.value}{_index(element.place)} = {element.value:g}"
    named = []
    for b in element.blamed:
        operand = finding.operands[b.operand]
        if operand is not None:
            at = f"{operand.name}{_index(b.place)}"
            named.append(operand.name if is_literal(operand) else f"{at} = {b.value:g}")
    if named:
        text += f" of {', '.join(named)}"
    if element.exact is not None and abs(element.exact) < float("inf"):
        text += f"; in f64 it is {element.exact:g}"
    return text


def _unrepeated(hunt: Hunt) -> list[str]:
    lines = ["at full speed these results were bad; op by op, from the same state, none is:"]
    lines += [f"  {text}" for text in hunt.unrepeated]
    if hunt.hazards:
        return [*lines, "the plan has hazards:", *[f"  {text}" for text in hunt.hazards]]
    conclusion = (
        "the plan is free of races; a kernel reads memory that it should not, or depends on time"
    )
    return [*lines, conclusion]


def operand_text(operand: Operand) -> str:
    s = operand.statistics
    counts = ((s.nan, "NaN"), (s.posinf, "inf"), (s.neginf, "-inf"))
    odd = [f"{n:,} {w}" for n, w in counts if n]
    figures = "nothing finite"
    if s.mean is not None:
        figures = f"mean {s.mean:.4g}  std {s.std:.3g}  min {s.min:.4g}  max {s.max:.4g}"
    return "  ".join([f"{operand.name}: {operand.type}", figures, *odd])


def _index(at: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, at))}]" if at else ""


def _line(link: Link) -> str:
    where = link.where
    if where is None:
        return "given"
    if _is_unseen(where):
        return _file(where.imported)
    return f"{_file(where.path)}:{where.line}" if where.path else where.graph


def _file(path: str) -> str:
    return path.rpartition("/")[2]
