"""Follows NaNs and infinities through one step that the debugger's machine runs: where each was
born, which way it went, and whether it came out.

A *root* is a result with elements that were born in its op, a result that its op did not write, or
a value from outside. What becomes of its elements, and of no others, `reach` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import OP, Activation, Node, Point, Producer
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.debugger.rerun import Unwritten, bad, born, rerun_of, unwritten
from opstep.runtime.debugger.scope import Handle
from opstep.runtime.ir.control import TEST
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.nan.batch import BatchRows, rows_of
from opstep.runtime.nan.collectives import came_over, lost_over_ranks
from opstep.runtime.nan.composites import Overflow, Within
from opstep.runtime.nan.dataflow import Reach, cause_of, ends_of, fate
from opstep.runtime.nan.findings import (
    INTENDED,
    MASKED,
    ORIGIN,
    UNINITIALISED,
    Finding,
    Link,
    Operand,
    PriorLoss,
    link_of,
    operand_names,
    part_of,
    where,
)
from opstep.runtime.nan.intended import ABOVE, WRITTEN, Ways, meaning_of, of_infinities
from opstep.runtime.nan.kinds import KINDS, SILENT, Criteria
from opstep.runtime.nan.silent import SilentLoss, silent_losses
from opstep.runtime.nan.sources import ITSELF
from opstep.runtime.nan.verdict import Verdict, given_verdict, judge, loss_verdict
from opstep.runtime.plan.control import control_of
from opstep.runtime.plan.internal import assert_
from opstep.runtime.transforms.composite import Composite

MOST_LINKS = 8  # of those that took in what does not come out
FATES = 16  # roots that do not come out whose fate is reported
SEARCHES = 16  # findings for which an earlier loss is looked for
WALKS = 6  # findings whose rows of the batch are looked for


class _Root(NamedTuple):
    """`own`: the elements that began here. `origin`: what they are that came from outside. `meant`:
    why they may be meant, "" where they are not. `loss`: one that no NaN shows.
    """

    node: Node
    own: np.ndarray
    position: int
    origin: str = ""
    meant: str = ""
    unwritten: Unwritten | None = None
    loss: SilentLoss | None = None

    @property
    def site(self) -> tuple:
        """The same for all executions of a statement."""
        producer = self.node.producer
        if producer is None:
            return self.origin, id(self.own)
        if self.origin:  # of another rank
            return self.origin, id(producer.step.statement)
        kind = ""
        if self.loss:  # an expression's text has figures, others each time
            kind = self.loss.text if self.loss.kind in SILENT else self.loss.kind
        return id(producer.step.statement), self.node.index, self.unwritten is None, kind


class Trace:
    """Listens to a machine while it runs a step. `criteria`: what counts; `trains`: it is a step of
    training, so its inputs are a batch.
    """

    def __init__(self, machine: Machine, criteria: Criteria = Criteria(), trains: bool = False):
        self.machine = machine
        self.criteria = criteria
        self.trains = trains
        self.skip = criteria.skips_infinities
        self.roots: list[_Root] = []
        self.bad: dict[int, tuple[bool, bool]] = {}  # by id of a node: NaN, infinities
        self.births: dict[int, np.ndarray] = {}  # by id of a node: elements that began there
        self.producers: list[Producer] = []  # executions that gave bad results
        self.consumers: dict[int, list[Producer]] = {}  # by id of a bad node: who took it in
        self.steering: set[int] = set()  # nodes that chose a branch, or whether a loop goes on
        self._nodes: dict[int, Node] = {}  # ids stay unique while their nodes live
        self.overflows: dict[int, Overflow] = {}  # by id of a composite's execution
        self._within: Within | None = None
        self.searches = SEARCHES
        self.walks = WALKS
        self.error: OpstepError | None = None  # what ended the step

    def run(self) -> None:
        """Runs the machine to the end of its step, or to an error of it."""
        try:
            self._run()
        except OpstepError as error:
            self.error = error

    def _run(self) -> None:
        machine = self.machine
        for node in machine.inputs:
            what = "constant" if node.name in self.criteria.roles.constants else "input"
            self._external(node, f"{what} {node.name}")
        while (here := machine.history.next_point()) is not None:
            activation, point = here
            machine.forward()
            self._steers(activation, point)
            step = activation.plan.steps[point.step] if point.kind == OP else None
            if step is not None and not step.op.traits.host and step.op.family != "internal":
                node = activation.env[step.results[0]][1]
                if node.producer is not None:
                    self.after(node.producer)

    def _steers(self, activation: Activation, point: Point) -> None:
        """Notes what control flow goes by."""
        plan = activation.plan
        outputs = list(plan.outputs) if activation.role == TEST else []
        step = plan.steps[point.step] if point.kind == OP else None
        if step and (step.op is assert_ or (step.op.traits.host and control_of(step).selects)):
            outputs += [v for v in step.operands[:1] if v is not None]
        self.steering.update(id(activation.env[v][1]) for v in outputs if v in activation.env)

    def after(self, producer: Producer) -> None:
        """Looks at the results of an op."""
        executor, now = self.machine.executor, self.machine.history.frontier
        bad_operands = [o for o in producer.operands if any(self._operand_flags(o))]
        for operand in {id(o): o for o in bad_operands if o is not None}.values():
            self.consumers.setdefault(id(operand), []).append(producer)
        over_ranks, of_all, left = [], None, {}
        if producer.is_shared:
            over_ranks, of_all = came_over(executor, producer)
        else:
            left = {id(u.node): u for u in unwritten(executor, producer)}
        found = [self._flags(node) for node in producer.results]
        if any(map(any, found)):
            self.producers.append(producer)
        if issubclass(producer.op, Composite):
            self._within = self._within or Within(self.machine, self.overflows)
            for node, loss in zip(producer.results, self._within.losses(producer), strict=False):
                if loss is not None and self.criteria.within:
                    self._nodes[id(node)] = node
                    self.roots.append(_Root(node, loss.mask, now, loss=loss))
        operands = None
        for k, (node, odd) in enumerate(zip(producer.results, found, strict=True)):
            missing = left.get(id(node))
            if missing:
                self._root(_Root(node, missing.mask, now, unwritten=missing))
            losses = self._silent_losses(producer, node) if self.criteria.slow else []
            if not any(odd):
                continue
            if operands is None:
                operands = executor.arrays(producer.operands)
            result = executor.array(node)
            nan = np.isnan(result)
            counts = (nan & self.criteria.nans) | (~nan & (not self.skip))
            own = of_all
            if own is None:
                own = np.asarray(born(rerun_of(executor, producer), operands, result, k))
            own = own & counts
            for rank, came in over_ranks:
                came = came & counts
                if came.any():
                    self._root(_Root(node, came, now, f"rank {rank}"))
                own = own & ~came
            for mask in (*losses, *([missing.mask] if missing else [])):
                own = own & ~mask
            if own.any():
                self._born(node, own, result)

    def _born(self, node: Node, own: np.ndarray, result: np.ndarray) -> None:
        producer = node.producer
        assert producer is not None
        nan, now = np.isnan(result), self.machine.history.frontier
        attrs = producer.step.attrs.values()  # a fill value, a limit
        writes = any(isinstance(a, float) and abs(a) == np.inf for a in attrs)
        meant = WRITTEN if writes and not (own & nan).any() else ""
        if producer.op.traits.moves and all(o is None for o in producer.operands):
            meant = WRITTEN  # a constant
        carried = np.zeros(own.shape, bool)
        if not meant and all(root.meant for root in self.roots) and (own & ~nan).any():
            carried = of_infinities(self.machine.executor, producer, own & ~nan)
        for mask, why in ((own & ~carried, meant), (carried, WRITTEN)):
            if mask.any():
                self._root(_Root(node, mask, now, meant=why))

    def _silent_losses(self, producer: Producer, node: Node) -> list[np.ndarray]:
        """Losses that no NaN shows, and expressions that hold. Gives the masks of elements of which
        these say enough.
        """
        executor, now = self.machine.executor, self.machine.history.frontier
        found = []
        if self.criteria.silent:
            within = {"overflow"} if id(producer) in self.overflows else set()
            kinds = self.criteria.kinds - within  # which is known better
            found = silent_losses(*self._arrays(producer), node.index, kinds)
        handle = Handle(executor, node)
        found += [  # after what may be the reason
            SilentLoss(text.partition(":")[0], text, np.ones((), bool))
            for text in self.criteria.broken(partial(executor.statistics, node), handle)
        ]
        self._nodes[id(node)] = node
        self.roots += [_Root(node, one.mask, now, loss=one) for one in found]
        return [m for kind, _, m in found if kind in SILENT and m.shape == node.type.shape]

    # --- values ---

    def _flags(self, node: Node) -> tuple[bool, bool]:
        found = self.bad.get(id(node))
        if found is None:
            nan, inf = self.machine.executor.nonfinite(node)
            found = self.bad[id(node)] = (nan, inf and not self.skip)
            self._nodes[id(node)] = node
        return found

    def _operand_flags(self, operand: Node | None) -> tuple[bool, bool]:
        """Of an operand; where it came from outside, it may be a root."""
        if operand is None:
            return False, False
        is_bad = id(operand) in self.bad
        found = self._flags(operand)
        if not is_bad and operand.producer is None and any(found):
            tensors = self.machine.host.tensors
            if operand.name in tensors:
                self._external(operand, f"{tensors[operand.name].kind} {operand.name}")
            else:
                self._external(operand, f"literal {operand.name}")
        return found

    def _external(self, node: Node, description: str) -> None:
        flags, base = self._flags(node), self.machine.history.base
        if not any(flags):
            return
        tensors, roles = self.machine.host.tensors, self.criteria.roles
        array = self.machine.executor.array(node)
        counts = (flags[0] and self.criteria.nans, flags[1])
        for counted, mask in zip(counts, (np.isnan(array), np.isinf(array)), strict=True):
            if counted:
                meant = meaning_of(node.name, description, array[mask], tensors, roles)
                self._root(_Root(node, np.asarray(mask), base, description, meant))

    def _root(self, root: _Root) -> None:
        self._nodes[id(root.node)] = root.node
        births = self.births.get(id(root.node))
        self.births[id(root.node)] = root.own if births is None else births | root.own
        self.roots.append(root)

    # --- what became of it ---

    def findings(self) -> list[Finding]:
        """All roots, those of one statement together: what comes out first, in the order of the
        run, and there what the program did not write itself; then the rest.
        """
        names, masks, params, kept = ends_of(self.machine, self.criteria, self._flags)
        reach = Reach(self.machine.executor, self.producers, self.births, masks)
        if sent := self._sent(reach):
            names |= {i: f"other ranks, by {op}" for i, (op, _) in sent.items()}
            masks |= {i: mask for i, (_, mask) in sent.items()}
            reach = Reach(self.machine.executor, self.producers, self.births, masks)
        for_backward = Reach(self.machine.executor, self.producers, self.births, kept)
        groups: dict[tuple, list[tuple[_Root, np.ndarray | None]]] = {}
        ways = Ways(reach, self.machine.executor, params)
        for root in self.roots:
            kind, arriving = self._kind(root, ways)
            groups.setdefault((kind, *root.site, self._target(root)), []).append((root, arriving))
        rank = {ORIGIN: 0, UNINITIALISED: 0, MASKED: 2, INTENDED: 3}

        def order(group: tuple) -> tuple[int, int]:
            (kind, *_), ((root, _), *_) = group
            return max(rank[kind], int(root.meant == WRITTEN)), root.position

        leading = self._leading(names)
        found, fates = [], 0
        for (kind, *_), group in sorted(groups.items(), key=order):
            root, arriving = group[0]
            finding = self._finding(root, kind, arriving, reach, names)
            if kind == ORIGIN and finding.verdict is not None and finding.verdict.caused:
                finding = replace(finding, infinity=self._infinity(root.node, ways, names))
            if kept and not finding.chain and (way := for_backward.path(root.node, True)):
                links = tuple(map(link_of, way))
                finding = replace(finding, chain=links, output=way[-1].name, saved=True)
            if kind == MASKED and root.loss is None and fates < FATES:
                fates += 1
                finding = self._with_fate(finding, root, leading)
                if finding.decided and self.error is None and self.machine.failed():
                    finding = replace(finding, kind=ORIGIN)  # for the assert that failed
            last = group[-1][0].node
            if len(group) > 1 and last.producer is not None:
                finding = replace(finding, times=len(group), last=where(last.producer, last).graph)
            found.append(finding)
        return found

    def _sent(self, reach: Reach) -> dict[int, tuple[str, np.ndarray]]:
        """By id of a node what of it goes to other ranks, and comes out there, if anywhere."""
        found = {}
        for node, taken in ((self._nodes[i], c) for i, c in self.consumers.items()):
            by = next((p.op.name for p in taken if p.is_shared), None)
            if by is not None and id(node) not in reach.arriving:
                array = self.machine.executor.array(node)
                mask = np.isnan(array) if self.skip else bad(array)
                if mask.any():
                    found[id(node)] = by, mask
        return found

    def _kind(self, root: _Root, ways: Ways) -> tuple[str, np.ndarray | None]:
        """The kind of finding that a root is, and a mask of its own elements that come out."""
        there = ways.reach.arriving.get(id(root.node))
        if root.unwritten or root.loss:
            harmless = root.loss is not None and not root.loss.mask.any()
            return UNINITIALISED if root.unwritten else MASKED if harmless else ORIGIN, None
        meant = WRITTEN if self._is_intended(root) else root.meant
        bits = 0xFF if meant in ("", ABOVE) else ITSELF
        arriving = None if there is None else ((there & bits) != 0) & root.own
        comes = arriving is not None and bool(arriving.any())
        if meant and not (comes and ways.do_harm(root.node, root.own, meant)):
            return INTENDED, arriving if comes else None
        if comes or self.error is not None:  # where a step did not end nothing came out at all
            return ORIGIN, arriving if comes else None
        return MASKED, None

    def _is_intended(self, root: _Root) -> bool:
        """Whether its name, or that with its graph's, is one of those wanted."""
        node, made = root.node, root.node.producer
        names = {node.name}
        if made is not None:
            names.add(f"{made.plan.frames[made.step.frame].graph.name.text}.{node.name}")
        if not names & self.criteria.wanted:
            return False
        return not np.isnan(self.machine.executor.array(node)[root.own]).any()

    def _leading(self, ends: dict[int, str]) -> set[int]:
        """Nodes on which something depends that leaves the step, or steers it."""
        machine, found = self.machine, set(ends) | self.steering
        outputs = machine.outputs() if machine.history.finished else ()
        todo = [*outputs, *(v[-1][1] for _, v in machine.history.named.items())]
        found.update(id(n) for n in todo)
        while todo:
            producer = todo.pop().producer
            for operand in producer.operands if producer else ():
                if operand is not None and id(operand) not in found:
                    found.add(id(operand))
                    todo.append(operand)
        return found

    # --- one finding ---

    def _finding(
        self, root: _Root, kind: str, arriving: np.ndarray | None, reach: Reach,
        names: dict[int, str],
    ) -> Finding:  # fmt: skip
        node, producer = root.node, root.node.producer
        path = []
        if arriving is not None:
            path = (root.meant and reach.path(node, True)) or reach.path(node, False)
        operands, verdict = (), None
        if producer is not None:
            operands = tuple(map(self._operand, producer.operands, operand_names(producer)))
        if root.unwritten is None:
            verdict = self._verdict(root, arriving)
        return Finding(
            node.name,
            "" if producer is None else producer.op.name,
            None if producer is None else where(producer, node),
            kind,
            verdict,
            operands,
            given=root.origin,
            type=str(node.type),
            unwritten=root.unwritten,
            chain=tuple(map(link_of, path)),
            output=names.get(id(path[-1]), "") if path else "",
            position=root.position,
            intended=bool(root.meant) and kind == ORIGIN,
            before=None if root.origin else self._prior_loss(producer, verdict),
            rows=self._rows(root, kind),
            within=self.overflows.get(id(producer)),
        )

    def _infinity(self, node: Node, ways: Ways, names: dict[int, str]) -> Finding | None:
        """An infinity of the program's own that NaNs of `node` were made of."""
        for root in self.roots:
            way = ways.between(root.node, node) if root.meant else []
            if way and self._kind(root, ways)[0] == INTENDED:
                found = self._finding(root, INTENDED, None, ways.reach, names)
                return replace(found, chain=tuple(map(link_of, way)))
        return None

    def _target(self, root: _Root) -> str:
        """The named tensor in whose update a root was born: many have the same statement."""
        node, producer = root.node, root.node.producer
        if not self.trains or producer is None or node.home is None:
            return ""
        return part_of(node.home[0], producer.step.frame, producer.step.statement)[1]

    def _rows(self, root: _Root, kind: str) -> BatchRows | None:
        """The rows of the batch that a root comes from, in a step of training."""
        of_others = bool(root.origin and root.node.producer)
        if kind != ORIGIN or of_others or not self.walks or not self.trains:
            return None
        self.walks -= 1
        return rows_of(self.machine.executor, self.machine.inputs, root.node, root.own)

    def _prior_loss(self, producer: Producer | None, verdict: Verdict | None) -> PriorLoss | None:
        """The loss without a sign before an op made NaNs or infinities of it."""
        if producer is None or verdict is None or verdict.kind not in KINDS or not self.searches:
            return None
        self.searches -= 1
        found = cause_of(self.machine.executor, producer, verdict.elements)
        if found is None or found.node.producer is None:
            return None
        made = found.node.producer
        return PriorLoss(
            found.node.name,
            made.op.name,
            where(made, found.node),
            place=found.place,
            number=found.value,
            text=found.text,
        )

    def _verdict(self, root: _Root, arriving: np.ndarray | None) -> Verdict | None:
        node, producer, executor = root.node, root.node.producer, self.machine.executor
        if producer is None or (root.origin and not root.loss):
            return given_verdict(executor.array(node), root.own, arriving)
        loss = root.loss
        if producer.is_shared:
            loss = loss or lost_over_ranks(producer, executor.array(node), root.own)
        if loss:
            return loss_verdict(*self._arrays(producer), node.index, loss)
        again = rerun_of(executor, producer)
        return judge(*self._arrays(producer), node.index, again, root.own, arriving)

    def _arrays(self, producer: Producer):
        arrays = self.machine.executor.arrays
        return producer.step, arrays(producer.operands), arrays(producer.results)

    def _with_fate(self, finding: Finding, root: _Root, leading: set[int]) -> Finding:
        met = fate(self.machine.executor, self.consumers, root.node, root.own)
        decided = [n for n in met.decided if id(n) in leading]
        masked = [n for n in (*met.masked_by, *met.decided) if not any(n is d for d in decided)]
        return replace(
            finding,
            masked_by=tuple(map(link_of, masked[:MOST_LINKS])),
            decided=tuple(map(link_of, decided[:MOST_LINKS])),
        )

    def _operand(self, node: Node | None, name: str) -> Operand | None:
        if node is None:
            return None
        return Operand(name or node.name, node.type, self.machine.executor.statistics(node))

    # --- words ---

    def links(self) -> Iterable[Link]:
        """Values whose NaNs and infinities only came through; of a statement the first one."""
        seen, began = set(), {id(r.node) for r in self.roots}
        for producer in self.producers:
            for k, node in enumerate(producer.results):
                site = (id(producer.step.statement), k)
                if site in seen or id(node) in began or not any(self._flags(node)):
                    continue
                seen.add(site)
                none = np.zeros(self.machine.executor.array(node).shape, bool)
                again = rerun_of(self.machine.executor, producer)
                verdict = judge(*self._arrays(producer), k, again, none)
                if verdict is not None:
                    yield replace(link_of(node), verdict=verdict)
