"""From drafts to graphs in the language: names for values, params and graphs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from opstep.frontends.torch.modules import forward_of
from opstep.frontends.torch.naming import identifier, renamed, unique
from opstep.frontends.torch.sources import Frame, assignment
from opstep.frontends.torch.translator import Draft, Made, relative
from opstep.runtime.ir.graph import Apply, Binding, Graph, Name, Return
from opstep.runtime.ir.op import OPS, Ref


class Writer:
    """Names the drafts of one program, from the outermost graph inwards. `ending`: what the names
    of modules' graphs end in.
    """

    def __init__(
        self, drafts: Sequence[Draft], tensors: set[str], library: set[str], ending: str = ""
    ):
        self._ending = ending
        self._drafts = {d.name: d for d in drafts}
        self._names = {d.name: "" for d in drafts}
        self._tensors = tensors
        self._graphs_used = {"main", *OPS, *library}
        self._sites: dict[str, int] = {}
        self.graphs: list[Graph] = []

    def write(
        self, main: Draft, named: Mapping[str, str], inputs: Mapping[str, str],
        results: Sequence[str],
    ) -> list[Graph]:  # fmt: skip
        """All graphs. `named`: by provisional name of main's inputs, the tensors that they are;
        `inputs`: what the others are called; `results`: what main's results are called.
        """
        for draft in (main, *self._drafts.values()):
            for statement in draft.statements:
                for name in _called(statement):
                    self._sites[name] = self._sites.get(name, 0) + 1
        self._graph(main, "main", named, inputs, results)
        return self.graphs

    def _graph(
        self, draft: Draft, name: str, direct: Mapping[str, str], wanted_inputs: Mapping[str, str],
        results: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`direct`: inputs that are named tensors, which the body reads itself."""
        wanted = dict(draft.body.stems)
        wanted |= _assigned(draft.made)
        wanted |= {v.name: r for v, r in zip(draft.results, results, strict=False) if r}
        wanted |= wanted_inputs
        used = set(self._tensors) | draft.symbols()
        names = dict(direct)
        for value in draft.body.stems:
            if value not in names:
                names[value] = unique(identifier(wanted[value]), used)
        inputs = [v for v in draft.inputs if v.name not in direct]
        place = len(self.graphs)
        body = [self._call(s, draft, names) for s in draft.statements]
        self.graphs.insert(
            place,
            Graph(
                Name(name),
                tuple(Binding(Name(names[v.name]), v.type) for v in inputs),
                tuple(v.type for v in draft.results),
                (*renamed(body, names), Return(tuple(Name(names[v.name]) for v in draft.results))),
            ),
        )

    def _call(self, statement, draft: Draft, names: Mapping[str, str]):
        """A call with its graph's name; the graph is written when it is first met."""
        if not isinstance(statement, Apply):
            return statement
        if statement.callee.text not in self._drafts:
            return self._control(statement, names) if _called(statement) else statement
        inner = self._drafts[statement.callee.text]
        operands = [o.text for o in statement.operands if isinstance(o, Name)]
        once = self._sites[inner.name] == 1
        direct = {
            v.name: names[o]
            for v, o in zip(inner.inputs, operands, strict=True)
            if once and names[o] in self._tensors
        }
        self._write_once(inner, direct, [names[o] for o in operands])
        kept = tuple(
            o for o, v in zip(statement.operands, inner.inputs, strict=True) if v.name not in direct
        )
        return replace(statement, callee=Name(self._names[inner.name]), operands=kept)

    def _control(self, statement: Apply, names: Mapping[str, str]) -> Apply:
        """Control flow with the names of the graphs in its attributes."""
        operands = [names[o.text] for o in statement.operands if isinstance(o, Name)]
        attrs = []
        for attr in statement.attrs:
            if isinstance(attr.value, Ref):
                inner = self._drafts[attr.value.name]
                self._write_once(inner, {}, operands[len(operands) - len(inner.inputs) :])
                attr = replace(attr, value=Ref(self._names[inner.name]))
            attrs.append(attr)
        return replace(statement, attrs=tuple(attrs))

    def _write_once(self, draft: Draft, direct: Mapping[str, str], callers: Sequence[str]) -> None:
        """`callers`: what the caller calls the operands."""
        if self._names[draft.name]:
            return
        title = (draft.title or draft.call.class_name) + self._ending
        name = unique(identifier(title, "graph"), self._graphs_used)
        self._names[draft.name] = name
        self._graph(draft, name, direct, _input_names(draft, callers))


def _called(statement) -> list[str]:
    """Provisional names of the graphs that a statement calls."""
    if not isinstance(statement, Apply):
        return []
    named = [
        statement.callee.text,
        *(a.value.name for a in statement.attrs if isinstance(a.value, Ref)),
    ]
    return [name for name in named if name.startswith("%")]


def _assigned(made: Sequence[Made]) -> dict[str, str]:
    """Names of Python's variables: of what a statement of Python's assigned, the last values that
    were made there.
    """
    found: dict[str, str] = {}
    k = 0
    while k < len(made):
        key, targets = _statement(made[k].frames)
        end = k + 1
        while end < len(made) and key is not None and _statement(made[end].frames)[0] == key:
            if made[end].is_call and made[end - 1].is_call:
                break  # the next turn of a loop over modules
            end += 1
        found |= _named(made[k:end], targets)
        k = end
    return found


def _statement(frames: tuple[Frame, ...]) -> tuple[tuple | None, tuple[str, ...]]:
    """What tells a statement from others, and what it assigns."""
    if not frames:
        return None, ()
    file, line, _ = frames[-1]
    where = assignment(file, line)
    if where is None:
        return None, ()
    return (frames[:-1], file, where.first), where.targets


def _named(made: Sequence[Made], targets: Sequence[str]) -> dict[str, str]:
    last = made[-1].results
    if len(targets) > 1 and len(last) == 1 and len(made) >= len(targets):
        last = tuple(m.results[0] for m in made[-len(targets) :])
    return {v.name: t for v, t in zip(last, targets, strict=False) if t}


def _input_names(draft: Draft, callers: Sequence[str]) -> dict[str, str]:
    """Weights after their place in the module; the first operand after `forward`'s first argument,
    others after what the caller calls them.
    """
    forward = forward_of(draft.call.kind)
    arguments = list(inspect.signature(forward).parameters)[1:] if forward else []
    found: dict[str, str] = {}
    for k, (value, source, name) in enumerate(
        zip(draft.inputs, draft.sources, callers, strict=True)
    ):
        tensor = source.node.meta.get("named")
        if tensor is not None:
            found[value.name] = relative(tensor, draft.call.path)
        else:
            found[value.name] = arguments[0] if k == 0 and arguments else name
    return found
