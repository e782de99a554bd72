"""Control flow in a gradient: `cond`, `switch` and `while`.

A branch's gradient is a graph that is called under the same condition. It is given what the branch
was given and the derivatives by its results, and computes what it needs of the branch once more:
nothing of a branch that is not taken has to be kept, and the caller keeps operands alone.

A loop's are in `loops`.

Named tensors that are updated on the way are passed to all these graphs as values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opstep.runtime.ir.diagnostics import Note
from opstep.runtime.ir.effects import called_graphs
from opstep.runtime.ir.graph import Apply, Attr, Binding, Literal, Name
from opstep.runtime.ir.lexer import identifier
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.verified import Application
from opstep.runtime.transforms.backward import GradientError
from opstep.runtime.transforms.builder import Builder, Operand, Var
from opstep.runtime.transforms.dependence import Key
from opstep.runtime.transforms.family import Draft, Family, Instance, instance, typed
from opstep.runtime.transforms.forward import Forward, Place
from opstep.runtime.transforms.loops import COUNT, Loop
from opstep.runtime.transforms.scans import Scan


class Site(NamedTuple):
    """A statement of control flow. `operands`: what the graphs are given, without what selects one;
    `carried`: named tensors that they touch and something updates; `updated`: those that they do.
    """

    statement: Apply
    place: Place
    attrs: Any
    operands: tuple[Operand, ...]
    carried: tuple[str, ...]
    updated: tuple[str, ...]
    selector: tuple[Operand, ...]
    instances: Mapping[str, Instance]  # of the graphs, by name

    @property
    def keys(self) -> tuple[Key, ...]:
        """Of what the graphs are given."""
        return (*range(len(self.operands)), *self.carried)

    @property
    def outputs(self) -> tuple[Key, ...]:
        """Of what they give."""
        return (*range(len(self.statement.results)), *self.updated)


class ControlGradients:
    """Writes control flow forward, and the graphs of its derivatives."""

    def __init__(self, family: Family):
        self.family = family
        self.verified = family.verified

    # --- forward ---

    def control(
        self, forward: Forward, statement: Apply, application: Application,
        operands: list[Operand], place: Place,
    ) -> list[Var]:  # fmt: skip
        """Writes the statement, and notes it for the way back; its results."""
        family, op = self.family, application.op
        assert op is not None
        loop, attrs = not op.selects, application.attrs  # pyright: ignore[reportAttributeAccessIssue]
        effects = family.effects(*called_graphs(attrs))
        carried = tuple(t for t in effects.touches if t in family.threaded)
        updated = carried if loop else tuple(t for t in carried if t in effects.updates)
        first = 0 if loop else 1
        given = tuple(operands[first:]), carried, updated, tuple(operands[:first])
        types = [o.type if isinstance(o, Var) else o for o in operands[first:]]
        graphs = {g: self.verified.graphs[g].graph for g in called_graphs(attrs)}
        instances = {name: instance(graph, types) for name, graph in graphs.items()}
        site = Site(statement, place, attrs, *given, instances)
        if loop and family.effects(attrs["test"].name).updates:
            message = f"no gradient is taken through a loop whose test, {attrs['test'].name}, "
            raise GradientError(message + "updates a named tensor", statement, "", place.source)
        values = [forward.version(t) for t in carried]
        types = [place.type(t) for t in application.resolved.results]
        types += [self.verified.tensors[t].type for t in updated]
        written_attrs = self._with_graphs(site, self._pure(site)) if carried else None
        if effects.asserts and forward.asserts:
            forward.kept.add(len(forward.builder.statements))
        names = [f"{identifier(t)}_new" for t in updated]
        given = [*operands, *values]
        results = forward.emit(op, statement, given, types, place, names, written_attrs)
        count = len(statement.results)
        forward.versions |= dict(zip(updated, results[count:], strict=True))
        tensors = tuple(t for t in effects.touches if t in family.wanted)
        read = [Var(t, self.verified.tensors[t].type) for t in tensors]
        noted = (*operands, *values, *read)
        rule = self._loop_rule if loop else self._branch_rule
        index = len(forward.builder.statements) - 1
        rule = _Rule(rule, site, tensors, forward, index)
        forward.note(op, rule, noted, (None,) * len(noted), results, {}, statement, place)
        return list(results[:count])

    def _pure(self, site: Site) -> Callable[[str], str]:
        def pure(graph: str) -> str:
            is_test = "test" in site.attrs and site.attrs["test"].name == graph
            updated = () if is_test else site.updated
            return self.pure(site.instances[graph], site.carried, updated)

        return pure

    def _with_graphs(self, site: Site, other: Callable[[str], str]) -> tuple[Attr, ...]:
        """The attributes with other graphs in place of those that they name."""

        def changed(value: Any) -> Any:
            if isinstance(value, Ref):
                return Ref(other(value.name))
            return tuple(map(changed, value)) if type(value) is tuple else value

        return tuple(replace(a, value=changed(a.value)) for a in site.statement.attrs)

    def pure(self, graph: Instance, carried: tuple[str, ...], updated: tuple[str, ...]) -> str:
        """A graph that takes `carried` tensors as values, and returns what `updated` become."""
        key = ("pure", graph, carried, updated)
        if key not in self.family.names:
            name = self.family.names[key] = self.family.name(f"{graph.graph}_pure")
            draft, forward, results = self.went(graph, carried, (), asserts=True)
            results += [forward.versions[t] for t in updated]
            about = f"{graph.graph}, which takes {', '.join(carried)} as it is now"
            about += f", and returns what it leaves in {', '.join(updated)}." if updated else "."
            self.family.add(draft.finish(name, results, comment=[about]))
        return self.family.names[key]

    def draft(self, graph: Instance, carried: Sequence[str]) -> Draft:
        called, place = self.verified.graphs[graph.graph].graph, Place(None, dict(graph.types))
        inputs = [(b.name.text, place.type(typed(b))) for b in called.inputs]
        tensors = [(f"{t}_now", self.verified.tensors[t].type) for t in carried]
        return Draft(self.family, [*inputs, *tensors], graph.type_parameters(called))

    def went(
        self, graph: Instance, carried: Sequence[str], by: Sequence[Key], asserts: bool,
        draft: Draft | None = None,
    ) -> tuple[Draft, Forward, list]:  # fmt: skip
        """A draft with the forward pass of a graph; `by`: what derivatives are by."""
        called = self.verified.graphs[graph.graph]
        draft = draft or self.draft(graph, carried)
        count = len(called.graph.inputs)
        values = dict(zip(carried, draft.inputs[count:], strict=False))
        given = dict(zip((*range(count), *carried), draft.inputs, strict=False))
        active = [given[k].name if k in given else str(k) for k in by]
        forward = draft.go(self, active, values, asserts)
        place = Place(called.source, dict(graph.types))
        results = forward.run(called, draft.inputs[:count], place)
        return draft, forward, results

    def depends(self, graph: str, output: Key) -> frozenset[Key]:
        return self.family.dependence.of(graph, output)

    # --- branches ---

    def _branch_rule(self, rule: _Rule, builder: Builder, incoming: tuple) -> list[Var | None]:
        site, forward = rule.site, rule.forward
        graphs = called_graphs(site.attrs)
        fed = tuple(k for k, g in zip(site.outputs, incoming, strict=True) if g is not None)
        needs = frozenset().union(*(self.depends(g, out) for g in graphs for out in fed))
        operands = [*site.operands, *rule.values(forward, len(site.selector))]
        active = [isinstance(o, Var) and o.name in forward.active for o in operands]
        by = tuple(
            k for k, a in zip((*site.keys, *rule.tensors), active, strict=True) if a and k in needs
        )
        if not by:
            return [None] * len(rule.operands)
        attrs = self._with_graphs(site, lambda g: self.branch(site.instances[g], site, by, fed))
        keys = (*site.keys, *rule.tensors)
        values = dict(zip(keys, operands, strict=True))
        passed = [values[k] for k in site.keys]
        given = [*site.selector, *passed, *(g for g in incoming if g is not None)]
        derivatives = [(f"{builder.prefix}_{values[k].name}", values[k].type) for k in by]
        found = builder.call(site.statement.callee.text, given, derivatives, attrs)
        gradients = dict(zip(by, found, strict=True))
        return [None] * len(site.selector) + [gradients.get(k) for k in keys]

    def branch(self, graph: Instance, site: Site, by: tuple[Key, ...], fed: tuple[Key, ...]) -> str:
        """The graph of the derivatives `by` inputs and tensors of a graph, given those by what it
        gives, `fed`.
        """
        key = ("branch", graph, site.carried, by, fed)
        if key in self.family.names:
            return self.family.names[key]
        name = self.family.names[key] = self.family.name(f"{graph.graph}_back")
        draft, forward, results = self.went(graph, site.carried, by, asserts=False)
        outputs: dict[Key, Var] = {**dict(enumerate(results)), **forward.versions}
        seeds = draft.take((f"d_{outputs[k].name}", outputs[k].type) for k in fed)
        gradients: dict[str, Var] = {}
        for k, seed in zip(fed, seeds, strict=True):
            draft.seed(gradients, outputs[k], seed)
        targets = self.targets(draft, graph, site.carried, by)
        found = draft.filled(draft.come_back(gradients, targets), targets)
        called = graph.graph
        about = f"Derivatives through {called}, which is computed once more as far as they need it."
        self.family.add(draft.finish(name, found, comment=[about]))
        return name

    def targets(
        self, draft: Draft, graph: Instance, carried: Sequence[str], by: Sequence[Key]
    ) -> list[Var]:
        count = len(self.verified.graphs[graph.graph].graph.inputs)
        values = dict(zip((*range(count), *carried), draft.inputs, strict=False))
        tensors = self.verified.tensors
        return [values.get(k) or Var(str(k), tensors[str(k)].type) for k in by]

    # --- loops ---

    def _loop_rule(self, rule: _Rule, builder: Builder, incoming: tuple) -> list[Var | None]:
        site, forward = rule.site, rule.forward
        body = site.attrs["body"].name
        operands = [*site.operands, *rule.values(forward, 0)]
        values = dict(zip((*site.keys, *rule.tensors), operands, strict=True))
        given = dict(zip(site.outputs, incoming, strict=True))
        results = dict(zip(site.outputs, rule.results, strict=True))
        begin = {k for k, v in values.items() if isinstance(v, Var) and v.name in forward.active}
        varying = spread(
            begin, lambda known: {k for k in site.keys if self.depends(body, k) & known}
        )
        useful = spread(
            {k for k in site.keys if given[k] is not None},
            lambda known: set().union(*(self.depends(body, k) for k in known)),
        )
        by = tuple(
            k for k in site.keys if k in varying and k in useful and results[k].dtype.is_float
        )
        tensors = tuple(t for t in rule.tensors if t in useful)
        if not by:
            return [None] * len(rule.operands)
        loop = Loop(self, site.attrs, site.instances, site.carried, by, tensors)
        scan = Scan.of(loop, site.operands)
        seeds = [given[k] or builder.zeros_like(results[k]) for k in by]
        passed = [values[k] for k in site.keys]
        way = builder.prefix
        derivatives = [(f"{way}_{getattr(values[k], 'name', k)}", results[k].type) for k in by]
        derivatives += [(f"{way}_{t}", values[t].type) for t in tensors]
        if scan is None:
            turns = self._count(rule, loop)
            found = builder.call(loop.back(), [*passed, turns, *seeds], derivatives)
        else:
            results = rule.results[: len(passed)]
            found = scan.write(forward, rule.index, results, passed, builder, seeds, derivatives)
        gradients = dict(zip((*by, *tensors), found, strict=True))
        none = [None] * (len(rule.operands) - len(values))
        return none + [gradients.get(k) if k in begin else None for k in values]

    def _count(self, rule: _Rule, loop: Loop) -> Var:
        """Lets the loop count its turns, where it stands already; their number."""
        builder = rule.forward.builder
        statement = builder.statements[rule.index]
        assert isinstance(statement, Apply)
        turns = Var(builder.fresh("turns"), COUNT)
        graphs = {"test": Ref(loop.test()), "body": Ref(loop.counted())}
        builder.statements[rule.index] = replace(
            statement,
            results=(*statement.results, Binding(Name(turns.name), None)),
            operands=(*statement.operands, Literal(0)),
            attrs=tuple(
                replace(a, value=graphs.get(a.name.text, a.value)) for a in statement.attrs
            ),
        )
        return turns


def spread(known: set, reached: Callable[[set], set]) -> set:
    """What is known, what that reaches, what that does, and so on."""
    while not (more := reached(known)) <= known:
        known = known | more
    return known


class _Rule:
    """The rule of a statement of control flow, as `Op.grad`."""

    def __init__(
        self, apply: Any, site: Site, tensors: tuple[str, ...], forward: Forward, index: int
    ):
        self.apply = apply
        self.site = site
        self.tensors = tensors  # that the graphs read by name, and derivatives are by
        self.forward = forward
        self.index = index  # of the statement
        self.operands: Sequence[Any] = ()
        self.results: tuple[Var, ...] = ()

    def values(self, forward: Forward, selectors: int) -> Sequence[Any]:
        """Of carried tensors and of those that are read."""
        return self.operands[selectors + len(self.site.operands) :]

    def __call__(self, builder: Builder, operands: Any, results: Any, incoming: tuple) -> Any:
        self.operands, self.results = operands, results
        try:
            return self.apply(self, builder, incoming)
        except GradientError as error:
            source, statement = self.site.place.source, self.site.statement
            if error.statement is None:
                error.statement, error.source = statement, source
            elif source is not None and statement.span.end:
                note = Note("through this, it is on the way", statement.span, source)
                error.notes = (*error.notes, note)
            raise
