"""The graph of a script at a stop, as the Graph view draws it: the ops that led to the tensors at
hand, as autograd knows them, folded by the calls of modules.

Autograd keeps an op as long as a tensor does that was computed by it, so nothing is recorded for
this. What needs no gradients is not in it.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from opstep.frontends.assignments import assignment
from opstep.frontends.torch.debugging import watching
from opstep.frontends.torch.dims import DTYPES
from opstep.frontends.torch.eager.births import Birth
from opstep.frontends.torch.eager.names import Names, roots
from opstep.frontends.torch.eager.ops import plain_name
from opstep.frontends.torch.eager.places import Made, frames, is_own
from opstep.frontends.torch.eager.tensors import storage_of

MOST_NODES = 20_000
MOST_ITEMS = 50  # of a container of the script, that tensors are looked for in
TOP = "what has run"
_UNCALLED = ("ModuleList", "ModuleDict")
_LEAF = "AccumulateGrad"
_INPUT = {"kind": "input", "op": "", "calls": [], "now": False, "bad": ""}


@dataclass(eq=False)
class Item:
    """A node of the picture: an op, a tensor, or (`Group`) a call of a module."""

    id: str
    kind: str
    name: str
    group: Group | None
    op: str = ""
    type: str | None = None
    file: str = ""
    line: int = 0
    is_now: bool = False
    bad: str = ""

    def around(self) -> list[Group]:
        """The calls that it is part of, the outermost first."""
        return [*self.group.around(), self.group] if self.group is not None else []


@dataclass(eq=False)
class Group(Item):
    """`graph`: what the call's own picture is called; `inputs`, `results`: the items that make
    what it is given, and what is used of it outside.
    """

    graph: str = ""
    path: str = ""
    items: list[Item] = field(default_factory=list)
    ran: dict[Any, Any] = field(default_factory=dict)  # nodes by their op and its stack
    inputs: list[Item] = field(default_factory=list)
    results: list[Item] = field(default_factory=list)
    edges: dict[tuple[str, str, int], Item] = field(default_factory=dict)

    def input(self, item: Item) -> int:
        if item not in self.inputs:
            self.inputs.append(item)
        return self.inputs.index(item)


def here() -> dict[str, dict[str, Any]]:
    """The graphs by name, the whole first; on the script's thread, where it stands. Raises
    ValueError where there is none.
    """
    with watching.unseen():
        return Drawing(sys._getframe(1)).drawn()


class Drawing:
    def __init__(self, frame: FrameType | None):
        self._births = watching.births()
        self._birth = watching.latest.birth if watching.latest is not None else None
        self._names = Names()
        self._paths = dict(_paths())
        self._counts: dict[str, int] = {}
        self._made: dict[Any, Item] = {}  # by node of autograd
        self._storages: dict[int, Any] = {}  # the nodes that made them
        self._leaves: dict[tuple[Any, Group], Item] = {}
        self._variables: dict[Any, str] = {}
        self._open: list[Group] = []
        self.top = self._new_group("", None, TOP)
        roots = self._roots(frame)
        if not roots:  # in a thread of autograd's, for which the main one waits
            roots = self._roots(sys._current_frames().get(threading.main_thread().ident or 0))
        found = self._searched(roots)
        if not found:
            raise ValueError(
                "no tensor of the call stack has a graph: nothing that ran needs gradients"
            )
        for node in found:
            self._add(node)
        self._add_latest()
        for node, item in list(self._made.items()):
            for place, (before, _) in enumerate(node.next_functions):
                if before is not None and (before in self._made or _is_leaf(_leaf_of(before))):
                    self._use(self._source(before, item), item, place)

    # --- what there is ---

    def _roots(self, frame: FrameType | None) -> list[list[Any]]:
        """Nodes of autograd that made tensors which the frames of the call stack hold, the
        innermost first.
        """
        every = []
        while frame is not None:
            found: dict[Any, None] = {}
            if is_own(frame.f_code.co_filename):
                for name, value in list(frame.f_locals.items()):
                    for t in _tensors_in(value):
                        if t.grad_fn is not None:
                            found[t.grad_fn] = None
                            self._variables.setdefault(t.grad_fn, name if t is value else "")
                            self._storages.setdefault(storage_of(t) or 0, t.grad_fn)
                        elif t.requires_grad and t is value:
                            self._variables.setdefault(id(t), name)
            every += [list(found)] * bool(found)
            frame = frame.f_back
        return every

    def _searched(self, roots: list[list[Any]]) -> list[Any]:
        """All that led to the newest tensor of the innermost frame that has any, and to others that
        have ops in common with it: a loss of the step before has not. In the order in which they
        ran.
        """
        if not roots:
            return []
        newest = max(roots[0], key=_number)
        parts = [_before(root) for nodes in roots for root in nodes if root is not newest]
        found, left = _before(newest), parts
        while joined := [part for part in left if not part.isdisjoint(found)]:
            found = found.union(*joined)
            left = [part for part in left if part.isdisjoint(found)]
        return sorted(found, key=_number)

    def _add(self, node: Any) -> None:
        made = self._births.made_at(node) if self._births is not None else None
        group = self._group(made, node)
        op = made.op if made is not None and made.op else _plain(node.name())
        item = self._new_item("op", group, plain_name(op), made, self._variables.get(node, ""))
        item.type = _type(node)
        self._made[node] = item
        birth = self._birth if watching.is_stopped() else None
        if birth is None or birth.place.phase != "backward":
            return
        item.is_now = birth.place.node.number == _number(node)
        numbers = {b.place.node.number: b.kind for b in (*birth.causes, birth)}
        if kind := numbers.get(_number(node)):
            item.bad = f"{'NaN' if kind == 'nan' else 'infinity'} born in its backward"

    def _add_latest(self) -> None:
        """The op that made a NaN: its result is in no variable yet."""
        birth = self._birth
        if birth is None or birth.place.phase != "forward" or not watching.is_stopped():
            return
        made = Made(birth.place.stack, birth.place.module, birth.place.node, birth.op)
        item = self._new_item("op", self._group(made, None), plain_name(birth.op), made, "")
        item.is_now, item.type = True, _type_of(birth)
        item.bad = f"{'NaN' if birth.kind == 'nan' else 'infinity'} born here"
        for place, operand in enumerate(birth.operands):
            before = self._storages.get(operand.storage)
            if before in self._made:
                self._use(self._made[before], item, place)

    # --- calls of modules ---

    def _group(self, made: Made | None, node: Any) -> Group:
        """The call of a module that an op is part of, which runs after all that were added. Where
        the op has run in that call, and this time on nothing that came of it, it is another call.
        """
        path = self._paths.get(made.module, []) if made is not None else []
        key = made and (made.op, made.stack)
        kept = 0
        while kept < min(len(path), len(self._open)) and self._open[kept].path == path[kept]:
            kept += 1
        if kept and node is not None:
            before = self._open[kept - 1].ran.get(key)
            kept -= before is not None and before not in _before(node)
        del self._open[kept:]
        for part in path[kept:]:
            around = self._open[-1] if self._open else self.top
            self._open.append(self._new_group(part, around, part))
        for group in self._open:
            group.ran[key] = node
        return self._open[-1] if self._open else self.top

    def _new_group(self, path: str, around: Group | None, name: str) -> Group:
        graph = self._unique(name)
        short = name.rpartition(".")[2] if name != TOP else name
        id = f"s{len(around.items)}" if around is not None else ""
        group = Group(id, "call", "", around, short, graph=graph, path=path)
        if around is not None:
            around.items.append(group)
        return group

    def _unique(self, name: str) -> str:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name} #{count}"

    def _new_item(
        self, kind: str, group: Group, op: str, made: Made | None, variable: str
    ) -> Item:  # fmt: skip
        own = frames(made.stack) if made is not None else []
        item = Item(f"s{len(group.items)}", kind, variable, group, op)
        if own:
            item.file, item.line = own[0].file, own[0].line
            for around in item.around()[1:]:
                if not around.file:
                    around.file, around.line = own[0].file, own[0].line
            found = assignment(item.file, item.line)
            targets = [t for t in found.targets if t] if found else []
            if not variable and found and len(targets) == 1 and found.operation in (op, f"{op}_"):
                item.name = targets[0]
        group.items.append(item)
        return item

    # --- edges ---

    def _source(self, node: Any, reader: Item) -> Item:
        node = _leaf_of(node)
        if not _is_leaf(node):
            return self._made[node]
        assert reader.group is not None
        key = node, reader.group
        if key not in self._leaves:
            t = node.variable
            name = self._names.of(t) or self._variables.get(id(t), "") or "leaf"
            kind = "param" if isinstance(t, torch.nn.Parameter) else "input"
            leaf = Item(f"leaf{len(self._leaves)}", kind, name, reader.group)
            leaf.type = _text(t.dtype, tuple(t.shape))
            leaf.file, leaf.line = reader.file, reader.line
            reader.group.items.append(leaf)
            self._leaves[key] = leaf
        return self._leaves[key]

    def _use(self, made: Item, reader: Item, place: int) -> None:
        """Through the calls that one of them is part of and the other is not."""
        out, into = made.around(), reader.around()
        common = sum(1 for a, b in zip(out, into, strict=False) if a is b)
        inner: Item = made
        for group in reversed(out[common:]):
            if made not in group.results:
                group.results.append(made)
            group.edges[inner.id, "return", group.results.index(made)] = made
            inner = group
        group, origin = out[common - 1], inner.id
        for called in into[common:]:
            k = called.input(made)
            group.edges[origin, called.id, k] = made
            group, origin = called, f"input:{k}"
        group.edges[origin, reader.id, place] = made

    # --- as JSON ---

    def drawn(self) -> dict[str, dict[str, Any]]:
        top = self.top
        while len(top.items) == 1 and isinstance(only := top.items[0], Group):
            top = only
        groups = [top]
        for group in groups:
            groups += [item for item in group.items if isinstance(item, Group)]
        return {group.graph: self._json(group, groups) for group in groups}

    def _json(self, group: Group, groups: list[Group]) -> dict[str, Any]:
        inputs = [_name(item) for item in group.inputs]
        nodes = [
            _node(item) | _INPUT | {"id": f"input:{k}", "name": inputs[k]}
            for k, item in enumerate(group.inputs)
        ]
        nodes += [_node(item) for item in group.items]
        if group.results:
            names = ", ".join(map(_name, group.results))
            nodes.append(_node(Item("return", "return", names, group)))
        edges = [
            {"from": a, "to": b, "value": _name(item), "type": item.type, "place": place}
            for (a, b, place), item in group.edges.items()
        ]
        uri = next((uri for n in nodes if (uri := n["uri"])), "")
        return {
            "uri": uri, "graph": group.graph, "version": None, "lines": [0, 0], "inputs": inputs,
            "nodes": [n | {"uri": n["uri"] or uri} for n in nodes], "edges": edges,
            "graphs": [g.graph for g in groups],
        }  # fmt: skip


def _node(item: Item) -> dict[str, Any]:
    line = max(item.line - 1, 0)
    text = linecache.getline(item.file, item.line) if item.file else ""
    is_call = isinstance(item, Group)
    values = [{"name": _name(item), "type": item.type}] if item.type else []
    return {
        "id": item.id, "kind": item.kind, "name": item.name, "op": item.op,
        "lines": [line, line], "column": len(text) - len(text.lstrip()), "args": [],
        "calls": [item.graph] if is_call else [], "values": values,
        "uri": Path(item.file).as_uri() if item.file else "",
        "now": item.is_now or (is_call and _has(item, "is_now")),
        "bad": item.bad or ("NaN or infinity born in it" if is_call and _has(item, "bad") else ""),
    }  # fmt: skip


def _has(group: Group, mark: str) -> bool:
    return any(getattr(i, mark) or (isinstance(i, Group) and _has(i, mark)) for i in group.items)


def _name(item: Item) -> str:
    return item.name or item.op


def _paths() -> Iterator[tuple[int, list[str]]]:
    """The calls of modules around what each module runs itself, by its id."""
    for root in roots():
        for name, module in root.named_modules():
            parts = name.split(".") if name else []
            around = [".".join(parts[: k + 1]) for k in range(len(parts))]
            called = [p for p in around if type(root.get_submodule(p)).__name__ not in _UNCALLED]
            yield id(module), [type(root).__name__, *called]


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in (list, tuple):
        yield from (t for t in value[:MOST_ITEMS] if isinstance(t, torch.Tensor))
    elif type(value) is dict:
        some = list(value.values())[:MOST_ITEMS]
        yield from (t for t in some if isinstance(t, torch.Tensor))


def _number(node: Any) -> int:
    return node._sequence_nr()


def _before(root: Any) -> set[Any]:
    """A node and all before it but leaves."""
    seen, waiting = {root}, [root]
    while waiting and len(seen) < MOST_NODES:
        for before, _ in waiting.pop().next_functions:
            if before is not None and before not in seen and not _is_leaf(_leaf_of(before)):
                seen.add(before)
                waiting.append(before)
    return seen


def _is_leaf(node: Any) -> bool:
    return node.name().endswith(_LEAF)


def _leaf_of(node: Any) -> Any:
    """The leaf that a node only transposes, as layers do with their weights; else the node."""
    if node.name() in ("TBackward0", "TransposeBackward0", "PermuteBackward0"):
        before = node.next_functions[0][0]
        return before if before is not None and _is_leaf(before) else node
    return node


def _plain(name: str) -> str:
    """``AddmmBackward0``: addmm."""
    return name.rpartition("::")[2].rstrip("0123456789").removesuffix("Backward").lower()


def _type(node: Any) -> str | None:
    """Of its first result."""
    metadata = getattr(node, "_input_metadata", None)
    return _text(metadata[0].dtype, tuple(metadata[0].shape)) if metadata else None


def _type_of(birth: Birth) -> str | None:
    return _text(birth.dtype, birth.shape) if birth.dtype is not None else None


def _text(dtype: torch.dtype, shape: tuple[Any, ...]) -> str:
    own = DTYPES.get(dtype)
    name = own.name if own is not None else str(dtype).removeprefix("torch.")
    return f"{name}[{', '.join(map(str, shape))}]"
