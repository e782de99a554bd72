"""If, Loop and Scan: their parts are graphs, which `cond` and `while` call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.frontends.onnx.body import axis_of
from opstep.frontends.onnx.errors import OF_DATA, Untranslatable
from opstep.frontends.onnx.translator import CONTROL, Scope
from opstep.frontends.onnx.values import Known, Value, known, weight
from opstep.frontends.statements import bound_symbols, symbols_of
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.types import TensorType, boolean, i64
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

UNROLLED = 64  # turns of a loop that is written out where its values change their types
INDEX, TEST = TensorType(i64, ()), TensorType(boolean, ())


def _inner(scope: Scope, graph: GraphProto, given: Mapping[str, Value | TensorType]) -> Scope:
    """A part with its nodes. `given`: what its inputs are, or their types."""
    inner = Scope(scope.program, scope)
    for name, value in given.items():
        if isinstance(value, TensorType):
            inner.input(name, value)
        else:
            inner.env[name] = value
    _fill(inner, graph)
    return inner


def _fill(inner: Scope, graph: GraphProto) -> None:
    for tensor in graph.initializer:
        elements = weight(tensor, inner.program.folder).elements
        inner.env[tensor.name] = known(elements, name=tensor.name)
    inner.part_nodes(graph.node)


def _results(inner: Scope, graph: GraphProto) -> list[Value]:
    found = [inner.look_up(o.name) for o in graph.output]
    if any(v is None for v in found):
        raise Untranslatable("a result that is nothing")
    return found  # pyright: ignore[reportReturnType]


def _witnesses(scope: Scope, inner: Scope, given: Sequence[Var]) -> None:
    """Sees to it that the symbols of a part are sizes of its inputs."""
    inputs = [*given, *(i for _, i in inner.captured.values())]
    used = {t for s in inner.body.statements for t in symbols_of(s)}
    used |= {t for v in inputs for d in v.shape if not isinstance(d, int) for t in d.symbols()}
    for symbol in sorted(used):
        if symbol in bound_symbols(inputs):
            continue
        witness = next((v for v in scope.values() if symbol in bound_symbols([v])), None)
        if witness is None:
            raise Untranslatable("a size that no operand of control flow has")
        inputs.append(inner.capture(witness))


def if_(scope: Scope, node: NodeProto, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    (condition,) = inputs
    branches = [attrs["then_branch"], attrs["else_branch"]]
    if isinstance(condition, Known):
        chosen = branches[0 if bool(condition.elements.reshape(-1)[0]) else 1]
        return _inlined(scope, chosen, {})
    parts = [_inner(scope, g, {}) for g in branches]
    results = []
    for part, graph in zip(parts, branches, strict=True):
        results.append([part.var(v) for v in _results(part, graph)])
        _witnesses(scope, part, [])
    types = [[v.type for v in r] for r in results]
    if types[0] != types[1]:
        raise Untranslatable("the branches give different types: a shape depends on data")
    outer = {o.name: o for part in parts for o, _ in part.captured.values()}
    names = []
    for part, found, word in zip(parts, results, ("then", "else"), strict=True):
        own = [part.capture(v) for v in outer.values()]
        name = scope.program.graph_name(f"{scope.body.prefix}_{word}")
        part.finish(name, found, own)
        names.append(name)
    graphs = {"then": names[0], "else": names[1]}
    condition = scope.body.reshaped(condition, [])
    return scope.body.control("cond", [condition, *outer.values()], types[0], graphs)


def _inlined(scope: Scope, graph: GraphProto, given: Mapping[str, Value]) -> list[Value]:
    """The nodes of a part, in place of a call."""
    inner = Scope(scope.program, scope)
    inner.share(scope)
    inner.env.update(given)
    b = scope.body
    kept = b.outputs, b.at, b.prefix
    _fill(inner, graph)
    b.outputs, b.at, b.prefix = kept
    return _results(inner, graph)


class _Series:
    """Results of all turns, which are rows of one tensor. `place`: the turn's row."""

    def __init__(self, axis: int, down: bool):
        self.axis, self.down = axis, down


def _repeated(
    scope: Scope, graph: GraphProto, count: Any, first: Value | None, condition: str,
    carried: Sequence[Value], names: Sequence[str], series: Sequence[_Series],
    begin: Callable[[Scope, Var], None],
) -> list[Value]:  # fmt: skip
    """A loop: `count` turns at most, a `Dim` or a value; None for no end. `first`: whether it
    begins, None where that is no question, and `condition` the part's input that says it. `names`:
    of the part's inputs that are carried, whose first values `carried` has. `begin` gives the part
    its other inputs, by the turn's number.
    """
    b, program = scope.body, scope.program
    start = [scope.var(v) for v in carried]
    inner = Scope(program, scope)
    t = inner.input("turn", INDEX)
    go = inner.input("goes_on", TEST) if isinstance(first, Var) else None
    states = [inner.input(n, v.type) for n, v in zip(names, start, strict=True)]
    if condition:
        inner.env[condition] = known(np.array(True)) if go is None else go
    begin(inner, t)
    _fill(inner, graph)
    found = _results(inner, graph)
    goes_on = found.pop(0) if first is not None else known(np.array(True))
    always = isinstance(goes_on, Known) and bool(goes_on.elements.all())
    if not always and go is None:  # it begins, but may end
        first = b.ones(shape=[], dtype=boolean)
        return _repeated(scope, graph, count, first, condition, carried, names, series, begin)
    if (series and not always) or (count is None and always):
        raise Untranslatable(OF_DATA if series else "a loop that never ends")
    if series and isinstance(count, Var):
        raise Untranslatable(OF_DATA)
    news = [inner.var(v) for v in found]
    changed = [(s.type, n.type) for s, n in zip(states, news, strict=False) if s.type != n.type]
    if changed:
        raise Untranslatable(f"a loop that changes a value from {changed[0][0]} to {changed[0][1]}")
    rows = news[len(states) :]
    whole, kept = [], []
    for k, (row, how) in enumerate(zip(rows, series, strict=True)):
        shape = [count, *row.shape]
        whole.append(b.zeros(shape=shape, dtype=row.dtype))
        inside = inner.input(
            f"series_{k}" if len(rows) > 1 else "series", TensorType(row.dtype, tuple(shape))
        )
        place = t
        if how.down:
            place = inner.body.sub(inner.body.size(_last(count), i64), t)
        kept.append(
            (inside, inner.body.scatter_nd(inside, inner.body.reshape(place, shape=[1]), row))
        )
    most = scope.var(count) if isinstance(count, Known) else count
    limit = inner.capture(b.reshaped(b.to(most, i64), [])) if isinstance(most, Var) else most
    own = [t, *([go] if go is not None else []), *states, *(i for i, _ in kept)]
    _witnesses(scope, inner, own)
    following = inner.body.add(t, 1)
    constants = list(inner.captured.values())
    passed = [i for _, i in constants]
    ends = [following, *([inner.var(goes_on)] if go is not None else []), *news[: len(states)]]
    ends += [n for _, n in kept]
    if go is not None:
        ends[1] = inner.body.reshaped(ends[1], [])
    name = program.graph_name(f"{b.prefix}_body")
    inner.finish(name, [*ends, *passed], [*own, *passed])
    test = Scope(program)
    seen = [test.input(v.name, v.type) for v in (*own, *passed)]
    answer = seen[1] if go is not None else None
    if limit is not None:
        bound = next((s for s, v in zip(seen, [*own, *passed], strict=True) if v is limit), limit)
        below = test.body.less(
            seen[0], bound if isinstance(bound, Var) else test.body.size(bound, i64)
        )
        answer = below if answer is None else test.body.logical_and(below, answer)
    assert answer is not None
    tested = program.graph_name(f"{b.prefix}_test")
    test.finish(tested, [answer], seen)
    operands: list[Any] = [0, *([scope.var(first)] if go is not None else []), *start, *whole]  # pyright: ignore
    operands += [o for o, _ in constants]
    types = [v.type for v in (*ends, *passed)]
    made = b.control("while", operands, types, {"test": tested, "body": name})
    made = made[1 + (go is not None) :]
    results: list[Value] = list(made[: len(states)])
    for how, value in zip(series, made[len(states) : len(states) + len(series)], strict=True):
        results.append(_behind(b, value, how.axis))
    return results


def _last(count: Any) -> Any:
    """The number of the last of so many."""
    return count - 1


def _behind(b: Any, x: Var, axis: int) -> Var:
    """Rows along another axis than the first."""
    axis = axis_of(axis, x.type.rank)
    perm = [*range(1, axis + 1), 0, *range(axis + 1, x.type.rank)]
    return b.transposed(x, perm)


def loop(scope: Scope, node: NodeProto, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    graph = attrs["body"]
    most, go, *carried = [*inputs, None, None][: max(len(inputs), 2)]
    number, condition, *names = [i.name for i in graph.input]
    count: Any = most
    if isinstance(most, Known):
        if most.size != 1:
            raise Untranslatable(f"its number of turns is {most.size} numbers")
        (count,) = most.elements.reshape(-1).tolist()
    if isinstance(go, Known) and not bool(go.elements.all()):
        count = 0
    series = [_Series(0, False) for _ in graph.output[1 + len(carried) :]]
    first = go if isinstance(go, Var) else known(np.array(True))

    def begin(inner: Scope, t: Var) -> None:
        inner.env[number] = t

    mark = scope.mark()
    try:
        return _repeated(scope, graph, count, first, condition, carried, names, series, begin)
    except Untranslatable as error:
        if not isinstance(count, int) or count > UNROLLED or isinstance(first, Var):
            raise
        scope.reset(mark)
        reason = error
    try:
        return _unrolled(scope, graph, count, carried, len(series))
    except Untranslatable:
        raise reason from None


def _unrolled(
    scope: Scope, graph: GraphProto, count: int, carried: Sequence[Value], series: int
) -> list[Value]:
    """All turns, one after the other."""
    number, condition, *names = [i.name for i in graph.input]
    rows: list[list[Value]] = [[] for _ in range(series)]
    for turn in range(count):
        given: dict[str, Value] = {number: known(np.array(turn)), condition: known(np.array(True))}
        given |= dict(zip(names, carried, strict=True))
        go, *found = _inlined(scope, graph, given)
        if not isinstance(go, Known):
            raise Untranslatable(OF_DATA)
        carried = found[: len(names)]
        for row, value in zip(rows, found[len(names) :], strict=True):
            row.append(value)
        if not bool(go.elements.all()):
            break
    b = scope.body
    return [*carried, *(b.stack(*(scope.var(v) for v in row)) for row in rows)]


def scan(scope: Scope, node: NodeProto, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    if scope.versions.get("", 9) >= 9:
        return _scanned(scope, inputs, attrs)
    lengths, *values = inputs  # before opset 9: all samples of a batch
    rows = [scope.var(v) for v in values]
    samples = rows[0].shape[0]
    if lengths is not None or not isinstance(samples, int) or samples > UNROLLED:
        raise Untranslatable("Scan of sequences that end at different places")
    b = scope.body
    how = {**attrs, "scan_input_directions": attrs.get("directions")}
    each = [_scanned(scope, [b.select(x, index=k) for x in rows], how) for k in range(samples)]
    return [b.stack(*(scope.var(v) for v in parts)) for parts in zip(*each, strict=True)]


def _scanned(scope: Scope, inputs: list[Any], attrs: Mapping[str, Any]) -> list[Value]:
    graph, width = attrs["body"], attrs["num_scan_inputs"]
    if not 0 < width <= len(inputs):
        raise Untranslatable(f"Scan of {width} of its {len(inputs)} inputs")
    carried, given = inputs[: len(inputs) - width], inputs[len(inputs) - width :]
    names = [i.name for i in graph.input]
    axes = attrs.get("scan_input_axes") or [0] * width
    downs = attrs.get("scan_input_directions") or [0] * width
    outputs = len(graph.output) - len(carried)
    places = attrs.get("scan_output_axes") or [0] * outputs
    turned = attrs.get("scan_output_directions") or [0] * outputs
    b = scope.body
    rows = []
    for value, axis in zip(given, axes, strict=True):
        x = scope.var(value)
        axis = axis_of(axis, x.type.rank)
        perm = [axis, *(k for k in range(x.type.rank) if k != axis)]
        rows.append(b.transposed(x, perm))
    count: Dim = rows[0].shape[0]

    def begin(inner: Scope, t: Var) -> None:
        for name, x, down in zip(names[len(carried) :], rows, downs, strict=True):
            place = t
            if down:
                place = inner.body.sub(inner.body.size(_last(count), i64), t)
            inner.env[name] = inner.body.gather(inner.capture(x), place, axis=0)

    series = [_Series(a, bool(d)) for a, d in zip(places, turned, strict=True)]
    own = names[: len(carried)]
    return _repeated(scope, graph, count, None, "", carried, own, series, begin)


CONTROL.update({"If": if_, "Loop": loop, "Scan": scan})
