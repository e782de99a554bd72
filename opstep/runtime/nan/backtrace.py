"""The origin of a tensor's NaNs and infinities: back through the ops that carried them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from opstep.runtime.debugger.activation import Node
from opstep.runtime.debugger.applied import index_of, producer_of
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.meeting import MetProducer
from opstep.runtime.debugger.rerun import rerun_of
from opstep.runtime.expressions.text import tensor_text
from opstep.runtime.nan.findings import GIVEN, ORIGIN, PROPAGATED, Link, Operand, where
from opstep.runtime.nan.verdict import Verdict, judge

MOST = 64  # ops that are followed back
ELEMENTS = 3  # told of each


@dataclass(frozen=True)
class Backtrace:
    """`links`: from the tensor that was asked about back to where it all began; `nodes`: the
    tensors that they are about. `ends`: whether all ways were followed to their ends.
    """

    links: tuple[Link, ...]
    nodes: tuple[Node, ...]
    ends: bool

    @property
    def line(self) -> str:
        """The fault and its cause, as one line."""
        link = next((link for link in self.links if link.kind == ORIGIN), self.links[0])
        first = describe(self.links[0]).partition("\n")[0].removeprefix(f"{self.links[0].kind}: ")
        rules = [rule for rule, _ in link.verdict.rules] if link.verdict else []
        born = f", born in {link.value}" if link is not self.links[0] else ""
        return f"{first}{born}{f' ({rules[0]})' if rules else ''}"

    @property
    def text(self) -> str:
        """In words."""
        shown = [link for k, link in enumerate(self.links) if not k or link.kind != PROPAGATED]
        lines = [describe(link) for link in shown]
        if len(self.links) > 1:
            lines.append(f"way back: {' <- '.join(link.value for link in self.links)}")
        if not self.ends:
            lines.append(f"and on, over more than {MOST} ops")
        return "\n".join(lines)


def trace_back(executor: Executor, node: Node) -> Backtrace:
    """Follows what is wrong with a tensor, through collectives to the ranks that it came from.
    Copies the bad tensors on the way, and their op's operands; no others.
    """
    links, nodes, seen, todo = [], [], {id(node)}, deque([(node, "")])
    while todo and len(links) < MOST:
        node, whose = todo.popleft()
        met = _met(executor, node)
        link = _link(executor, node, carried=bool(met))
        nodes.append(node)
        links.append(replace(link, value=f"{link.value}{whose}"))
        for source, rank in met or [(s, whose) for s in _sources(node, link.verdict)]:
            if id(source) not in seen:
                seen.add(id(source))
                todo.append((source, rank))
    return Backtrace(tuple(links), tuple(nodes), not todo)


def _met(executor: Executor, node: Node) -> list[tuple[Node, str]]:
    """Of what a collective gave the bad operands, each with whose it is."""
    producer = node.producer
    if not isinstance(producer, MetProducer):
        return []
    pairs = zip(producer.meeting.operands, producer.meeting.positions, strict=False)
    return [(o, f" (rank {rank})") for o, rank in pairs if any(executor.nonfinite(o))]


def _link(executor: Executor, node: Node, carried: bool = False) -> Link:
    """`carried`: by a collective, of what ranks had."""
    producer = producer_of(node)
    if producer is None or carried:
        s = executor.statistics(node)
        bad = s.nan + s.posinf + s.neginf
        kind = "nan" if s.nan else "inf"
        seen = Verdict(kind, bad, s.count, 0, nan=s.nan) if bad else None
        if producer is not None:
            return Link(node.name, producer.op.name, where(producer, node), PROPAGATED, seen)
        return Link(node.name, "", None, GIVEN, seen)
    operands = executor.arrays(producer.operands)
    results = [executor.array(r) for r in producer.results]
    k = index_of(node, producer)
    again = rerun_of(executor, producer) if producer is node.producer else None
    verdict = judge(producer.step, operands, results, k, again)
    kind = ORIGIN if verdict is not None and verdict.is_origin else PROPAGATED
    figures = tuple(
        None if o is None else Operand(o.name, o.type, executor.statistics(o))
        for o in (producer.operands if verdict is not None else ())
    )
    return Link(node.name, producer.op.name, where(producer, node), kind, verdict, figures)


def _sources(node: Node, verdict: Verdict | None) -> list[Node]:
    """The operands that bad elements came from."""
    producer = producer_of(node)
    if producer is None or verdict is None:
        return []
    indices = dict.fromkeys((*verdict.carried, *verdict.caused))
    return [s for j in indices if (s := producer.operands[j]) is not None]


def describe(link: Link) -> str:
    """A link in words."""
    verdict = link.verdict
    if verdict is None:
        return f"{link.value} is finite"
    amount = _amount(verdict)
    if link.where is None:
        return f"{link.value} came in with {amount}"
    head = f"{link.kind}: {link.value}, the result of {link.op}"
    lines = [f"{head}: {amount}", f"  {link.where.text}"]
    for rule, count in verdict.rules:
        lines.append(f"  {rule}: {_explained(count, verdict)}")
    for element in verdict.elements[:ELEMENTS]:
        blamed = ", ".join(
            f"{operand_name(link, b.operand)}{list(b.place)} = {b.value:g}" for b in element.blamed
        )
        of = f" of {blamed}" if blamed else ""
        lines.append(f"  {link.value}{list(element.place)} = {element.value:g}{of}: {element.rule}")
    for operand in link.operands:
        if operand is not None:
            text = tensor_text(operand.type, operand.statistics)
            lines.append(f"  {operand.name or 'literal'}: {text}")
    return "\n".join(lines)


def _explained(count: int, verdict: Verdict) -> str:
    """The number of elements that broke a rule, of those born here or of a sample of them."""
    if 0 < verdict.explained < verdict.own:
        return f"{count:,} of {verdict.explained:,} elements looked at, {verdict.own:,} born here"
    return f"{count:,} of {verdict.own:,} elements born here"


def _amount(verdict: Verdict) -> str:
    counts = ((verdict.nan, "NaN"), (verdict.count - verdict.nan, "infinite"))
    told = " and ".join(f"{count:,} {name}" for count, name in counts if count)
    return f"{told} of {verdict.size:,} elements"


def operand_name(link: Link, j: int) -> str:
    """The name of an op's operand j."""
    operand = link.operands[j]
    return operand.name if operand is not None else f"operand {j}"
