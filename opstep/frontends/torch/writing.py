"""From drafts to graphs in the language: names for values, params and graphs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from opstep.frontends.assignments import Assignment, assignment
from opstep.frontends.statements import renamed, unique
from opstep.frontends.torch.drafts import Draft, Made, Value
from opstep.frontends.torch.modules import forward_of
from opstep.frontends.torch.naming import identifier
from opstep.frontends.torch.sources import Frame, relative
from opstep.runtime.ir.graph import NO_COMMENTS, Apply, Binding, Comments, Graph, Name, Return
from opstep.runtime.ir.op import OPS, Ref

_DIGITS = re.compile(r"_?\d+")  # of a module's name: which turn of a loop it is called in


class Writer:
    """Names the drafts of one program, from the outermost graph inwards. `ending`: what the names
    of modules' graphs end in. `forward`: of a backward, what its forward calls values, by nodes.
    """

    def __init__(
        self, drafts: Sequence[Draft], tensors: set[str], library: set[str], ending: str = "",
        forward: Mapping[str, str] | None = None,
    ):  # fmt: skip
        self._ending, self._forward = ending, forward
        self._drafts = {d.name: d for d in drafts}
        self._names = {d.name: "" for d in drafts}
        self._tensors = tensors
        self._graphs_used = {"main", *OPS, *library}
        self._known_names: dict[Draft, dict[str, str]] = {}
        self._orders: dict[Draft, list[int]] = {}  # of the inputs, where it changes
        self._by_control: set[str] = set()  # graphs whose inputs control flow passes, in order
        self._sites: dict[str, int] = {}
        self._values: dict[str, dict[str, str]] = {}  # by graph: what its values are called
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
                    if isinstance(statement, Apply) and name != statement.callee.text:
                        self._by_control.add(name)
        self._graph(main, "main", named, inputs, results)
        return self.graphs

    def _graph(
        self, draft: Draft, name: str, direct: Mapping[str, str], wanted_inputs: Mapping[str, str],
        results: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`direct`: inputs that are named tensors, which the body reads itself."""
        wanted = dict(self._wanted(draft))
        wanted |= {v.name: r for v, r in zip(draft.results, results, strict=False) if r}
        wanted |= wanted_inputs
        used = set(self._tensors) | draft.symbols()
        names = dict(direct)
        for value in draft.body.stems:
            if value not in names:
                names[value] = unique(identifier(wanted[value]), used)
        self._values[name] = names
        order = self._order(draft)
        inputs = [draft.inputs[k] for k in order if draft.inputs[k].name not in direct]
        place = len(self.graphs)
        body = [self._call(s, draft, names) for s in draft.statements]
        values = tuple(Name(names[v.name]) for v in draft.results)
        returned = (Return(values),) if values else ()
        self.graphs.insert(
            place,
            Graph(
                Name(name),
                tuple(Binding(Name(names[v.name]), v.type) for v in inputs),
                tuple(v.type for v in draft.results),
                (*(renamed(s, names) for s in body), *returned),
                Comments((draft.call.kind,)) if draft.call.kind else NO_COMMENTS,
            ),
        )

    def nodes(self, draft: Draft, graph: str = "main", path: str = "main") -> dict[str, Value]:
        """What values are in the fx graph, by their sites (``main/Block:h/y``), once written."""
        names = self._values[graph]
        kept = ((names[v], value) for v, value in draft.nodes.items() if v in names)
        found = {f"{path}/{name}": value for name, value in kept}
        for result, (callee, inner) in draft.calls.items():
            called = self._names[callee]
            found |= self.nodes(inner, called, f"{path}/{called}:{names[result]}")
        return found

    def _wanted(self, draft: Draft) -> dict[str, str]:
        """What values would be called. Several results of a call are called as in the graph that
        makes them: they need not come in the order in which Python's function returns them.
        """
        if draft not in self._known_names:
            found = dict(draft.body.stems)
            for s in draft.statements:
                inner = self._drafts.get(s.callee.text) if isinstance(s, Apply) else None
                if inner is None or (len(inner.results) < 2 and self._forward is None):
                    continue
                assert isinstance(s, Apply)
                theirs, stems = self._wanted(inner), inner.body.stems
                for result, made in zip(s.results, inner.results, strict=True):
                    if theirs[made.name] != stems[made.name] or theirs[made.name] not in OPS:
                        found[result.name.text] = theirs[made.name]
            if self._forward is None:
                found |= _assigned(draft.made, draft.body.stems)
            else:
                found |= _gradients(draft, self._forward)
            self._known_names[draft] = found
        return self._known_names[draft]

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
            statement.operands[k] for k in self._order(inner) if inner.inputs[k].name not in direct
        )
        return replace(statement, callee=Name(self._names[inner.name]), operands=kept)

    def _order(self, draft: Draft) -> Sequence[int]:
        return self._orders.get(draft, range(len(draft.inputs)))

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
        is_backward = self._forward is not None
        wanted = _input_names(draft, callers, [] if is_backward else _arguments(draft))
        if draft.name not in self._by_control:
            self._orders[draft] = _argument_order(draft, wanted)
        self._graph(draft, name, direct, wanted)


def _called(statement) -> list[str]:
    """Provisional names of the graphs that a statement calls."""
    if not isinstance(statement, Apply):
        return []
    named = [
        statement.callee.text,
        *(a.value.name for a in statement.attrs if isinstance(a.value, Ref)),
    ]
    return [name for name in named if name.startswith("%")]


def _assigned(made: Sequence[Made], stems: Mapping[str, str]) -> dict[str, str]:
    """Names of Python's variables: of what a statement of Python's assigned, the last values that
    were made there, in each turn of a loop.
    """
    found: dict[str, str] = {}
    k = 0
    while k < len(made):
        key, where = _statement(made[k].frames)
        end = k + 1
        while end < len(made) and key is not None and _statement(made[end].frames)[0] == key:
            if made[end].is_call and made[end - 1].is_call:
                break  # the next turn of a loop over modules
            end += 1
        if where is not None:
            ops = [_DIGITS.sub("", stems.get(m.results[0].name, "")) for m in made[k:end]]
            turn = _turn(ops, where.turn)
            for first in range(k, end, turn):
                found |= _named(made[first : first + turn], where)
        k = end
    return found


def _turn(ops: list[str], least: int) -> int:
    """How many of these ops are one turn of a loop that did them all: at least so many, if any."""
    for n in range(least, len(ops) // 2 + 1) if least else ():
        if len(ops) % n == 0 and ops == ops[:n] * (len(ops) // n):
            return n
    return len(ops)


def _statement(frames: tuple[Frame, ...]) -> tuple[tuple | None, Assignment | None]:
    """What tells a statement from others, and the statement."""
    if not frames:
        return None, None
    file, line, _ = frames[-1]
    where = assignment(file, line)
    if where is None:
        return None, None
    return (frames[:-1], file, where.first), where


def _named(made: Sequence[Made], where: Assignment) -> dict[str, str]:
    last, targets = made[-1].results, where.targets
    if made[-1].places:
        named = [where.name_at(place) for place in made[-1].places]
        return {v.name: t for v, t in zip(last, named, strict=True) if t}
    if made[-1].is_call and len(last) > 1:
        return {}
    if len(targets) > 1 and len(last) == 1 and len(made) >= len(targets):
        last = tuple(m.results[0] for m in made[-len(targets) :])
    return {v.name: t for v, t in zip(last, targets, strict=False) if t}


def _gradients(draft: Draft, forward: Mapping[str, str]) -> dict[str, str]:
    """Names of gradients: ``grad_h`` of what the forward calls h."""
    found = {}
    for name, (node, index) in draft.nodes.items():
        known = node.meta.get("gradient_of", {}).get(index, ())
        names = [forward[of] for of in known if of in forward]
        if names:  # rather that of a variable than that of an op
            of = next((n for n in names if _DIGITS.sub("", n) not in OPS), names[0])
            found[name] = f"grad_{of}"
    return found


def _arguments(draft: Draft) -> list[str]:
    """Those of the module's `forward`."""
    forward = forward_of(draft.call.kind)
    return list(inspect.signature(forward).parameters)[1:] if forward else []


def _input_names(
    draft: Draft, callers: Sequence[str], arguments: Sequence[str]
) -> dict[str, str]:  # fmt: skip
    """Weights after their place in the module; other inputs after the argument of `forward` that
    the caller calls alike, the only one left after the first argument, else as in the caller.
    """
    if not draft.sources:  # it has names of its own
        return {}
    found: dict[str, str] = {}
    left: list[str] = []
    for value, source, name in zip(draft.inputs, draft.sources, callers, strict=True):
        tensor = source.node.meta.get("named")
        bare = re.sub(r"_\d+$", "", name)
        if tensor is not None:
            found[value.name] = relative(tensor, draft.call.path)
        elif bare in arguments and bare not in found.values():
            found[value.name] = bare
        else:
            found[value.name] = name
            left.append(value.name)
    if len(left) == 1 and arguments and arguments[0] not in found.values():
        found[left[0]] = arguments[0]
    return found


def _argument_order(draft: Draft, names: Mapping[str, str]) -> list[int]:
    """The places of a graph's inputs in the order of `forward`'s arguments; weights stay behind."""
    if not draft.sources:
        return list(range(len(draft.inputs)))
    places = {name: k for k, name in enumerate(_arguments(draft))}

    def rank(k: int) -> tuple[bool, int]:
        is_named = draft.sources[k].node.meta.get("named") is not None
        return is_named, places.get(names[draft.inputs[k].name], len(places)) * (not is_named)

    return sorted(range(len(draft.inputs)), key=rank)
