"""The places at which values leave a step, and which of their elements count there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from opstep.runtime.debugger.activation import Node
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.nan.births import bad
from opstep.runtime.nan.kinds import Criteria

Masks = dict[int, np.ndarray]  # by the id of a node


class Ends(NamedTuple):
    """Outputs, and named tensors that the step updates: their names by the id of a node, and their
    bad elements, without those that are wanted. `params`: those that are params; `kept`: infinities
    in outputs that only a backward takes.
    """

    names: dict[int, str]
    masks: Masks
    params: set[int]
    kept: Masks


def ends_of(
    machine: Machine, criteria: Criteria, flags: Callable[[Node], tuple[bool, bool]]
) -> Ends:
    """Those of a step that has run. `flags`: whether a node has NaNs, and infinities."""
    array, ends, roles = machine.executor.array, Ends({}, {}, set(), {}), criteria.roles

    def leaving(node: Node, name: str, before: Node | None = None) -> np.ndarray:
        """An infinity that a named tensor had, and still has, is what the program began it with."""
        if not any(flags(node)):
            return np.zeros(1, bool)
        found = array(node)
        mask, inf = (np.isnan(found) if criteria.skips_infinities else bad(found)), np.isinf(found)
        if name in criteria.wanted or name in roles.kept:
            mask = mask & ~inf
        if before is not None:
            mask = mask & ~(inf & (array(before) == found))
        return np.asarray(mask)

    for name, versions in machine.history.named.items():
        if len(versions) > 1:
            node, before = versions[-1][1], versions[0][1]
            ends.names[id(node)], ends.masks[id(node)] = name, leaving(node, name, before)
            if machine.host.tensors[name].kind == "param":
                ends.params.add(id(node))
            if node.producer is not None and node.producer.op.name == "update":
                converted = node.producer.operands[0]
                assert converted is not None
                ends.names[id(converted)], ends.masks[id(converted)] = name, ends.masks[id(node)]
    if machine.history.finished:
        last = machine.history.finished[-1][1].plan
        for v, node in zip(last.outputs, machine.outputs(), strict=True):
            name = last.values[v].name
            if name not in criteria.ignored:
                ends.names[id(node)], ends.masks[id(node)] = name, leaving(node, name)
            if name in roles.kept and flags(node)[1]:
                ends.kept[id(node)] = np.asarray(np.isinf(array(node)))
    return ends._replace(masks={i: m for i, m in ends.masks.items() if m.any()})
