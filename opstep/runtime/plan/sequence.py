"""A graph's statements as memory sees them: what each reads, writes, takes and costs.

For concrete sizes, in the order of the text and as on one stream. A statement that is executed
again gives a new *instance* of its results; a `Rerun` is the sequence with such statements in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from opstep.runtime.ir.graph import Apply, Name, Return, Statement, Update, names_read
from opstep.runtime.plan.flat import Flat, has_place
from opstep.runtime.plan.ordering import Movable, sunk_order
from opstep.runtime.plan.packing import rounded
from opstep.runtime.plan.plan import Step

Cuts = Mapping[int, tuple[int, ...]]
"""By node: whoever reads it after such a place of the sequence reads an instance of its own."""


@dataclass(slots=True)
class Node:
    """A statement of the graph; what it calls is part of it.

    `reads`, `writes`: values. `needs`: the nodes that it reads from. `cost`: estimated ns. `inner`:
    bytes that it takes while it runs. `repeats`: whether it may be executed again. `inplace`: the
    values that it reads whose bytes a result may take over.
    """

    statement: Statement
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()
    cost: int = 0
    inner: int = 0
    repeats: bool = True
    inplace: tuple[int, ...] = ()


@dataclass(slots=True)
class Sequence:
    """All statements, and columns over their results, the values.

    `writer`: the node; `size`: bytes; `owner`: the value whose bytes it has, itself or, for a view,
    another; `ends`: whether it is held to the end.
    """

    nodes: list[Node]
    writer: list[int]
    size: list[int]
    owner: list[int]
    ends: list[bool]

    def sharers(self) -> dict[int, set[int]]:
        """By owner: the nodes that write it and its views."""
        found: dict[int, set[int]] = {}
        for value, owner in enumerate(self.owner):
            found.setdefault(owner, set()).add(self.writer[value])
        return found


def sequence(flat: Flat) -> Sequence:
    """The statements of the graph that was lowered."""
    return _Reader(flat).sequence()


def sunk(found: Sequence) -> Sequence:
    """The same in an order in which less is held, see `ordering`."""
    owner, nodes = found.owner, found.nodes
    movable = [
        Movable(
            [owner[v] for v in n.reads],
            [owner[v] for v in n.writes],
            any(owner[v] != v for v in n.writes),
            not n.repeats,
        )
        for n in nodes
    ]
    order = sunk_order(movable, found.size, len(nodes))
    if order is None:
        return found
    new = {k: i for i, k in enumerate(order)}
    moved = [replace(nodes[k], needs=tuple([new[d] for d in nodes[k].needs])) for k in order]
    return replace(found, nodes=moved, writer=[new[k] for k in found.writer])


class _Reader:
    def __init__(self, flat: Flat):
        self.flat = flat
        self.body = flat.frames[0].graph.body
        self.steps: dict[int, list[int]] = {id(s): [] for s in self.body}
        for k, step in enumerate(flat.steps):
            self.steps[id(self._outermost(step))].append(k)
        others = flat.steps[: len(flat.steps) - flat.commits]
        self.changed = {flat.homes[v] for s in others for v in s.values_written}
        self.found = Sequence([], [], [], [], [])
        self.by_name: dict[str, int] = {}
        self.owners: dict[int, int] = {}  # buffer -> value

    def _outermost(self, step: Step) -> Statement:
        """The statement of the graph itself that a step is part of."""
        frame, statement = self.flat.frames[step.frame], step.statement
        while frame.parent >= 0 and frame.statement is not None:
            frame, statement = self.flat.frames[frame.parent], frame.statement
        return statement

    def sequence(self) -> Sequence:
        found = self.found
        for statement in self.body:
            self._add(statement)
        last = [s for s in self.body if isinstance(s, Return | Update)]
        for name in (n for s in last for n in names_read(s) if n in self.by_name):
            found.ends[found.owner[self.by_name[name]]] = True
        for value, owner in enumerate(found.owner):
            if found.ends[owner]:  # whoever is given it knows it by its name
                found.nodes[found.writer[value]].repeats = False
        return found

    def _add(self, statement: Statement) -> None:
        found, names = self.found, self.by_name
        reads = tuple({names[n]: None for n in names_read(statement) if n in names})
        node = Node(statement, reads, needs=tuple({found.writer[v]: None for v in reads}))
        found.nodes.append(node)
        if not isinstance(statement, Apply):
            return
        steps = [self.flat.steps[k] for k in self.steps[id(statement)]]
        node.cost = sum(self.flat.costs[k] for k in self.steps[id(statement)])
        node.repeats = all(map(self._repeats, steps))
        node.inplace = self._inplace(statement, steps)
        node.writes = tuple([self._value(b.name.text) for b in statement.results])
        node.inner = self._inner(steps)

    def _repeats(self, step: Step) -> bool:
        """Whether a step has the same results when it runs again."""
        read = {self.flat.homes[v] for v in step.operands if v is not None}
        changed = any(self.flat.kinds[b] == "param" and b in self.changed for b in read)
        return not changed and not has_place(step.op)

    def _inplace(self, statement: Apply, steps: list[Step]) -> tuple[int, ...]:
        if len(steps) != 1:
            return ()
        operands = [o for k, o in enumerate(statement.operands) if k in steps[0].op.inplace]
        names = [o.text for o in operands if isinstance(o, Name)]
        return tuple([self.by_name[n] for n in names if n in self.by_name])

    def _value(self, name: str) -> int:
        """A new value, the result of the node that was added last."""
        found, flat, value = self.found, self.flat, len(self.found.writer)
        buffer = flat.homes[flat.scopes[0][name]]
        is_temp = flat.kinds[buffer] == "temp"
        found.writer.append(len(found.nodes) - 1)
        found.owner.append(self.owners.setdefault(buffer, value) if is_temp else value)
        found.size.append(rounded(flat.sizes[buffer]) if is_temp else 0)
        found.ends.append(False)
        self.by_name[name] = value
        return value

    def _inner(self, steps: list[Step]) -> int:
        """The most bytes that working memory and values of called graphs take at once."""
        flat, first, last = self.flat, {}, {}
        for k, step in enumerate(steps):
            for v in (*step.operands, *step.results):
                b = -1 if v is None else flat.homes[v]
                if b >= 0 and flat.kinds[b] == "temp" and b not in self.owners:
                    first.setdefault(b, k)
                    last[b] = k
        most = 0
        for k, step in enumerate(steps):
            taken = flat.sizes[step.workspace] if step.workspace >= 0 else 0
            taken += sum(flat.sizes[b] for b in first if first[b] <= k <= last[b])
            most = max(most, taken)
        return most


class Rerun:
    """A sequence with statements that are executed again, as `cuts` has it: right before the first
    one that reads the new instance.

    Columns over positions: `node`, the `time` that it was executed for (its own place in the
    sequence, or that of who wanted it), and `instance`. Columns over instances of owners, called
    storages: `value`, `uses` (positions), `held` (to the end). ``at[value, instance]``: a storage.
    """

    def __init__(self, sequence: Sequence, cuts: Cuts):
        self.sequence = sequence
        self.cuts = cuts
        self.node: list[int] = []
        self.time: list[int] = []
        self.instance: list[int] = []
        self.value: list[int] = []
        self.uses: list[list[int]] = []
        self.held: list[bool] = []
        self.at: dict[tuple[int, int], int] = {}
        self._now = [0] * len(sequence.nodes)
        self._storage = [-1] * len(sequence.writer)
        self._taken_over: list[tuple[tuple[int, ...], int]] = []
        for k in range(len(sequence.nodes)):
            self._execute(k)
        self.profile = self._profile()

    def wanted(self, node: int, time: int) -> int:
        """The instance that is read at a time."""
        cuts = self.cuts.get(node)
        return bisect_left(cuts, time) if cuts else 0

    def _execute(self, node: int) -> None:
        """A statement of the text, after those that it wants executed again."""
        stack, nodes, now = [node], self.sequence.nodes, self._now
        while stack:
            k = stack[-1]
            old = [d for d in nodes[k].needs if d in self.cuts and now[d] < self.wanted(d, node)]
            if old:
                stack.append(old[0])
                continue
            stack.pop()
            if k != node:
                now[k] = self.wanted(k, node)
            self._emit(k, node)

    def _emit(self, k: int, time: int) -> None:
        sequence, storage, position = self.sequence, self._storage, len(self.node)
        node, instance = sequence.nodes[k], self._now[k]
        self.node.append(k)
        self.time.append(time)
        self.instance.append(instance)
        for v in node.reads:
            self.uses[storage[v]].append(position)
        inplace = tuple([storage[v] for v in node.inplace])
        for v in node.writes:
            owner = sequence.owner[v]
            if owner != v:
                storage[v] = self._viewed(node, owner)
                self.uses[storage[v]].append(position)
            else:
                storage[v] = len(self.value)
                self.value.append(v)
                self.uses.append([position])
                self.held.append(sequence.ends[v])
                if inplace:
                    self._taken_over.append((inplace, storage[v]))
            self.at[v, instance] = storage[v]

    def _viewed(self, node: Node, owner: int) -> int:
        """The storage that a view is of: that of what it reads, or of a result beside it."""
        owners = self.sequence.owner
        return next(
            (self._storage[v] for v in node.reads if owners[v] == owner), self._storage[owner]
        )

    def last(self, storage: int) -> int:
        """The position where a storage was used last."""
        return len(self.node) if self.held[storage] else self.uses[storage][-1]

    def _profile(self) -> Any:
        """The bytes that live at each position."""
        import numpy as np

        nodes, size = self.sequence.nodes, self.sequence.size
        count = len(self.node)
        first = [u[0] for u in self.uses]
        end = [min(count, self.last(s) + 1) for s in range(len(self.uses))]
        for operands, result in self._taken_over:
            wanted = size[self.value[result]]
            for s in operands:
                if end[s] == first[result] + 1 and size[self.value[s]] == wanted:
                    end[s] -= 1  # the result has its bytes
                    break
        sizes = np.array([size[v] for v in self.value], np.int64)
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, first, sizes)
        np.subtract.at(change, end, sizes)
        return np.cumsum(change[:count]) + np.array([nodes[k].inner for k in self.node], np.int64)

    @property
    def peak(self) -> int:
        return int(self.profile.max(initial=0))

    @property
    def cost(self) -> int:
        """Estimated ns of what is executed again."""
        nodes = self.sequence.nodes
        return sum(nodes[k].cost for k, i in zip(self.node, self.instance, strict=True) if i)
