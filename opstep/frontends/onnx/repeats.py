"""Blocks of nodes that a model repeats, one after the other: they become one graph.

Exporters write every layer anew. Nodes that do the same have the same number here; a run of numbers
that comes again at once is a block, if its nodes are also connected alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.frontends.onnx.origins import CLASSES, SCOPES, classes_of, module_path

if TYPE_CHECKING:
    from onnx import NodeProto

LEAST, MOST = 4, 4000  # nodes of a block
ROUNDS = 12  # kinds of blocks of a model
CHOICES = 64  # of first nodes that are looked at more closely
PERIODS = 24  # that are tried in a round
GRAPH, GRAPHS = 5, 10  # kinds of attributes


@dataclass(eq=False)
class Outlined:
    """What a block does, as a function of the model would say it. `prefixes`: what the names of its
    values begin with; `labels`: what its inputs that are no weights are called.
    """

    name: str
    input: list[str]
    output: list[str]
    node: Sequence[NodeProto]
    prefixes: tuple[str, ...]
    labels: Mapping[str, str]
    domain: str = ""
    opset_import: Sequence[Any] = ()
    attribute_proto: Sequence[Any] = field(default_factory=list)


class Block(NamedTuple):
    """One occurrence: nodes from `start` to `stop`, what they read and what others read of them."""

    start: int
    stop: int
    function: Outlined
    inputs: list[str]
    outputs: list[str]


def find_blocks(
    nodes: Sequence[NodeProto], weights: Mapping[str, Any], results: Sequence[str]
) -> list[Block]:
    """Blocks that do not overlap, in order. `weights`: types of initializers, by name."""
    numbers = _numbers(nodes, weights)
    readers = _last_reader(nodes, results)
    live = _live(nodes, readers)
    free = np.ones(len(nodes), bool)
    found: list[Block] = []
    for _ in range(ROUNDS):
        best = max(_runs(numbers, free), default=None)
        if best is None:
            break
        _, start, period, count = best
        blocks = _outlined(nodes, start, period, count, weights, readers, live)
        if len(blocks) > 1:
            found += blocks
            free[blocks[0].start : blocks[-1].stop] = False
        else:
            free[start : start + period] = False
    return sorted(found, key=lambda b: b.start)


def _numbers(nodes: Sequence[NodeProto], weights: Mapping[str, Any]) -> np.ndarray:
    """Equal where nodes do the same with weights of the same type."""
    known: dict[Any, int] = {}
    found = np.empty(len(nodes), np.int64)
    for k, node in enumerate(nodes):
        if any(a.type in (GRAPH, GRAPHS) for a in node.attribute):
            key: Any = k
        else:
            attrs = tuple(sorted(a.SerializeToString() for a in node.attribute))
            shapes = tuple(weights.get(n, n == "") for n in node.input)
            key = node.op_type, node.domain, attrs, shapes, len(node.output)
        found[k] = known.setdefault(key, len(known))
    return found


def _last_reader(nodes: Sequence[NodeProto], results: Sequence[str]) -> dict[str, int]:
    """The last node that reads a value, also from a part of it; behind all for results."""
    found: dict[str, int] = {}
    for k, node in enumerate(nodes):
        for name in _read(node):
            found[name] = k
    found.update(dict.fromkeys(results, len(nodes)))
    return found


def _live(nodes: Sequence[NodeProto], readers: Mapping[str, int]) -> np.ndarray:
    """How many values are made before each node and read there or later."""
    change = np.zeros(len(nodes) + 2, np.int64)
    for k, node in enumerate(nodes):
        for name in node.output:
            if name in readers:
                change[k + 1] += 1
                change[readers[name] + 1] -= 1
    return np.cumsum(change)


def _read(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        if attribute.type == GRAPH:
            for inner in attribute.g.node:
                yield from _read(inner)
            yield from (o.name for o in attribute.g.output)


def _runs(numbers: np.ndarray, free: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """How many nodes would be saved, the first node, the block's length, and how often it comes."""
    distances: Counter[int] = Counter()
    last: dict[int, int] = {}
    for k in np.flatnonzero(free).tolist():
        before = last.get(numbers[k])
        if before is not None and LEAST <= k - before <= MOST:
            distances[k - before] += 1
        last[numbers[k]] = k
    likely = sorted(distances, key=lambda d: (-distances[d], d))[:PERIODS]
    for period in likely:
        equal = (numbers[:-period] == numbers[period:]) & free[:-period] & free[period:]
        ends = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
        for start, stop in zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True):
            length = stop - start + period
            if length >= 2 * period:
                yield (length // period - 1) * period, -start, period, length


def _outlined(
    nodes: Sequence[NodeProto], start: int, period: int, length: int, weights: Mapping[str, Any],
    readers: Mapping[str, int], live: np.ndarray,
) -> list[Block]:  # fmt: skip
    """The blocks of a run, from where the fewest values go from one to the next."""
    start = -start
    slack = min(length % period, period - 1)
    fewest = live[start : start + slack + 1] + live[start + period : start + period + slack + 1]
    firsts = (np.flatnonzero(fewest == fewest.min()) + start)[:CHOICES].tolist()
    first = max(firsts, key=lambda k: (len(_prefix(nodes[k : k + period])), -k))
    model = _Connected(nodes, first, period, weights)
    count = (start + length - model.start) // period
    members = [model]
    for k in range(1, count):
        other = _Connected(nodes, model.start + k * period, period, weights)
        if other.pattern != model.pattern:
            break
        members.append(other)
    if len(members) < 2:
        return []
    places = sorted({p for m in members for p in m.given(readers)})
    if not places:
        return []
    own = nodes[model.start : model.start + period]
    title, prefix = _title(own)
    prefixes = prefix, _weights_prefix(model.inputs, weights)
    outputs = [model.made[p] for p in places]
    values = [n for n in model.inputs if n not in weights]
    labels = {n: f"x_{k + 1}" if k else "x" for k, n in enumerate(values)}
    function = Outlined(title, model.inputs, outputs, own, prefixes, labels)
    return [
        Block(m.start, m.start + period, function, m.inputs, [m.made[p] for p in places])
        for m in members
    ]


class _Connected:
    """How the nodes of a block are connected: `pattern` is equal where two are alike."""

    def __init__(
        self, nodes: Sequence[NodeProto], start: int, period: int, weights: Mapping[str, Any]
    ):
        self.start, self.stop = start, start + period
        self.inputs: list[str] = []
        self.made: list[str] = []
        places: dict[str, int] = {}
        outside: dict[str, int] = {}
        pattern: list[Any] = []
        for node in nodes[start : start + period]:
            row: list[Any] = []
            for name in node.input:
                if not name or name in places:
                    row.append(places.get(name))
                    continue
                if name not in outside:
                    outside[name] = len(outside)
                    self.inputs.append(name)
                row.append(("in", outside[name]))
            pattern.append(tuple(row))
            for name in node.output:
                if name:
                    places[name] = len(self.made)
                self.made.append(name)
        self.pattern = tuple(pattern)

    def given(self, readers: Mapping[str, int]) -> list[int]:
        """Places of what others read."""
        return [k for k, n in enumerate(self.made) if n and readers.get(n, -1) >= self.stop]


def _title(nodes: Sequence[NodeProto]) -> tuple[str, str]:
    """What a block is called, and what the names of its values begin with."""
    paths, classes = [], ()
    for node in nodes:
        if node.metadata_props:
            found = {p.key: p.value for p in node.metadata_props}
            paths.append(module_path(found.get(SCOPES, "")))
            classes = classes or classes_of(found.get(CLASSES, ""))
    shared = _common(paths)
    prefix = _prefix(nodes)
    if shared:
        name = classes[len(shared)] if len(classes) > len(shared) else shared[-1]
        name = name.rpartition(".")[2]
    else:
        parts = [re.sub(r"\W?\d+$", "", p) for p in prefix.strip("/._").split("/")]
        name = next((p for p in reversed(parts) if p), "")
    return name if re.search("[A-Za-z]", name) else "block", prefix


def _prefix(nodes: Sequence[NodeProto]) -> str:
    """The path that the names of all results begin with, where they are paths."""
    found = "".join(_common([n.output[0] for n in nodes if n.output]))
    return found[: found.rfind("/") + 1] if found.startswith("/") else ""


def _weights_prefix(inputs: Sequence[str], weights: Mapping[str, Any]) -> str:
    """The same for dotted names of weights."""
    found = "".join(_common([n for n in inputs if n in weights and "." in n]))
    return found[: found.rfind(".") + 1]


def _common(parts: Sequence[Any]) -> list[str]:
    """What all begin with."""
    if not parts:
        return []
    first, last = min(parts), max(parts)
    count = next(
        (k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    return list(first[:count])
