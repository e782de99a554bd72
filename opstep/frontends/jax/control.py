"""Loops and branches: their parts are graphs, which `while`, `cond` and `switch` call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opstep.frontends.jax.body import Body
from opstep.frontends.jax.calls import closed, constants_of, inlined, input_names, results_of
from opstep.frontends.jax.origins import Origins, function_of
from opstep.frontends.jax.translator import CALLED, Broken, Scope
from opstep.frontends.jax.types import size, type_of
from opstep.frontends.jax.values import Known, Value
from opstep.runtime.ir.graph import Apply, Attr, Name
from opstep.runtime.ir.types import TensorType, boolean, i64
from opstep.runtime.transforms.builder import Var

LIMIT = 1_000_000  # turns that `while` takes by itself
INDEX = TensorType(i64, ())


class _Part:
    """A jaxpr as a graph that control flow calls. Values that do not change, which it reads, are
    passed through: `around` has them, by the name that they have outside.
    """

    def __init__(self, scope: Scope, jaxpr: Any):
        self.jaxpr = jaxpr
        self.outer = scope
        self.inner = Scope(scope.shared, function_of(jaxpr.jaxpr), scope.body.at or scope.site)
        self.inner.call_from(scope)
        self.inner.env = constants_of(jaxpr)
        self.around: dict[str, tuple[Var, Var]] = {}

    def constant(self, variable: Any, value: Value, name: str) -> None:
        """A value that is the same in all turns."""
        self.inner.env[variable] = self.passed(value, name)

    def passed(self, value: Value, name: str) -> Value:
        if isinstance(value, Known):
            return value
        var = self.outer.var(value)
        if var.name in self.outer.shared.declared:
            return var
        if var.name not in self.around:
            self.around[var.name] = var, self.inner.input(name, var.type)
        return self.around[var.name][1]

    def state(self, variable: Any, name: str, type: TensorType) -> Var:
        var = self.inner.input(name, type)
        if variable is not None:
            self.inner.env[variable] = var
        return var

    def results(self) -> list[Var]:
        """Raises `Untranslatable` where an equation could not be translated, which is noted."""
        self.inner.equations(self.jaxpr.jaxpr)
        used = [True] * len(self.jaxpr.jaxpr.outvars)
        found = results_of(self.inner, self.jaxpr, used)
        if any(v is None for v in found):
            raise Broken
        return [self.inner.var(v) for v in found if v is not None]


def scan(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    p = equation.params
    jaxpr, consts, carry = closed(p["jaxpr"]), p["num_consts"], p["num_carry"]
    length = size(p["length"])
    b = scope.body
    part = _Part(scope, jaxpr)
    invars = jaxpr.jaxpr.invars
    names = input_names(jaxpr.jaxpr, values)
    turn = part.state(None, "turn", INDEX)
    for variable, value, name in zip(invars[:consts], values, names, strict=False):
        part.constant(variable, value, name)
    start = [scope.var(v) for v in values[consts : consts + carry]]
    states = [
        part.state(v, n, s.type)
        for v, n, s in zip(invars[consts:], names[consts:], start, strict=False)
    ]
    inner = part.inner.body
    place = inner.sub(inner.size(length - 1, i64), turn) if p["reverse"] else turn
    rows = zip(
        invars[consts + carry :], values[consts + carry :], names[consts + carry :], strict=True
    )
    for variable, value, name in rows:
        if isinstance(value, Known) and value.is_uniform:
            part.inner.env[variable] = Known(value.elements, value.shape[1:])
            continue
        if isinstance(value, Known):
            value = scope.var(value)
        whole = part.inner.var(part.passed(value, f"{name}_all"))
        part.inner.env[variable] = inner.gather(whole, place, axis=0)
    wanted = b.used
    types = [type_of(v.aval) for v in equation.outvars]
    series = []
    for k, type in enumerate(types[carry:], carry):
        if wanted[k]:
            name = f"series_{k - carry}"
            series.append(
                (k, part.state(None, name, type), b.zeros(shape=list(type.shape), dtype=type.dtype))
            )
    used = [k < carry or wanted[k] for k in range(len(types))]
    part.inner.equations(jaxpr.jaxpr, used)
    found = results_of(part.inner, jaxpr, used)
    news = [part.inner.var(_there(v)) for v in found[:carry]]
    written = []
    for k, rows_so_far, _ in series:
        row = part.inner.var(_there(found[k]))
        at = inner.reshape(place, shape=[1])
        written.append(inner.scatter_nd(rows_so_far, at, row))
    own = [turn, *states, *(s for _, s, _ in series)]
    ends = [inner.add(turn, 1), *news, *written]
    first = [b.zeros(shape=[], dtype=i64), *start, *(z for *_, z in series)]
    made = _while(
        scope,
        part,
        own,
        ends,
        first,
        lambda t, turn, *_: t.body.less(turn, t.body.size(length, i64)),
        length,
    )
    results: list[Value | None] = [None] * len(types)
    results[:carry] = made[1 : carry + 1]
    for (k, *_), value in zip(series, made[carry + 1 :], strict=True):
        results[k] = value
    return results


def _there(value: Value | None) -> Value:
    if value is None:
        raise Broken
    return value


def _while(
    scope: Scope, part: _Part, own: list[Var], ends: list[Var], first: list[Var], test: Any,
    length: Any = None,
) -> list[Var]:  # fmt: skip
    """Calls a body whose inputs are `own`, and what it passes through; its results are `ends`."""
    b = scope.body
    title = part.inner.function.name.strip("<>_") or "loop"
    passed = list(part.around.values())
    inputs = [*own, *(i for _, i in passed)]
    body = part.inner.share(f"{title}_body", [*ends, *(i for _, i in passed)], inputs)
    checked = Scope(scope.shared, part.inner.function)
    seen = [checked.input(v.name, v.type) for v in inputs]
    answer = test(checked, *seen)
    tested = checked.share(f"{title}_test", [answer], seen)
    operands = [*first, *(o for o, _ in passed)]
    made = b.control("while", operands, [v.type for v in inputs], {"test": tested, "body": body})
    if not isinstance(length, int) or length >= LIMIT:
        limit = length + 1 if isinstance(length, int) else 2**62
        last = b.statements[-1]
        assert isinstance(last, Apply)
        b.statements[-1] = replace(last, attrs=(*last.attrs, Attr(Name("limit"), limit)))
    return made[: len(own)]


def while_(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    p = equation.params
    body, test = closed(p["body_jaxpr"]), closed(p["cond_jaxpr"])
    of_test, of_body = p["cond_nconsts"], p["body_nconsts"]
    part = _Part(scope, body)
    names = input_names(body.jaxpr, values[of_test:])
    carried = values[of_test + of_body :]
    for variable, value, name in zip(
        body.jaxpr.invars[:of_body], values[of_test : of_test + of_body], names, strict=False
    ):
        part.constant(variable, value, name)
    start = [scope.var(v) for v in carried]
    states = [
        part.state(v, n, s.type)
        for v, n, s in zip(body.jaxpr.invars[of_body:], names[of_body:], start, strict=True)
    ]
    of_test_names = input_names(test.jaxpr, values[:of_test])
    consts = [
        part.passed(v, n) for v, n in zip(values[:of_test], of_test_names, strict=False)
    ]  # fmt: skip

    def judged(inner: Scope, seen: Sequence[Var], given: Sequence[Value]) -> Var:
        judge = Scope(scope.shared, function_of(test.jaxpr))
        judge.share_body(inner)
        judge.origins = Origins(judge.function)
        judge.env = constants_of(test) | dict(
            zip(test.jaxpr.invars, [*given, *seen], strict=True)
        )  # fmt: skip
        judge.equations(test.jaxpr)
        return judge.var(_there(results_of(judge, test, [True])[0]))

    ends = part.results()
    if test.out_avals[0].shape:  # of many loops at once: those that are done stay as they are
        going = judged(part.inner, states, consts)
        ends = [_chosen(part.inner.body, going, n, s) for n, s in zip(ends, states, strict=True)]

    def tested(checked: Scope, *seen: Var) -> Var:
        own = {v.name: v for v in seen}
        given = [own.get(v.name, v) if isinstance(v, Var) else v for v in consts]
        answer = judged(checked, seen[: len(states)], given)
        return checked.body.any(answer) if answer.shape else answer

    return _while(scope, part, states, ends, start, tested)


def _chosen(b: Body, going: Var, new: Var, old: Var) -> Var:
    more = new.type.rank - going.type.rank
    return b.where(b.reshaped(going, [*going.shape, *[1] * more]), new, old)


def cond(scope: Scope, equation: Any, values: list[Value]) -> Sequence[Value | None]:
    branches = [closed(j) for j in equation.params["branches"]]
    index, *operands = values
    b = scope.body
    if isinstance(index, Known):
        chosen = min(max(int(index.elements), 0), len(branches) - 1)
        return inlined(scope, branches[chosen], operands, b.used)
    at = scope.var(index)
    tensors = {}
    for v in operands:
        if not isinstance(v, Known):
            var = scope.var(v)
            if var.name not in scope.shared.declared:
                tensors[var.name] = var
    names, types = [], []
    for k, jaxpr in enumerate(branches):
        part = _Part(scope, jaxpr)
        inner = {n: part.inner.input(n, v.type) for n, v in tensors.items()}
        for variable, value in zip(jaxpr.jaxpr.invars, operands, strict=True):
            if isinstance(value, Known):
                part.inner.env[variable] = value
            else:
                var = scope.var(value)
                part.inner.env[variable] = inner.get(var.name, var)
        results = part.results()
        types = [v.type for v in results]
        word = ("else", "then")[k] if len(branches) == 2 else f"case_{k}"
        name = part.inner.function.name.strip("<>_") or "branch"
        own = {id(v): v for v in inner.values()}
        results = [
            part.inner.body.identity(v) if id(v) in own or v.name in scope.shared.declared else v
            for v in results
        ]  # fmt: skip
        names.append(part.inner.share(f"{name}_{word}", results, list(inner.values())))
    given = list(tensors.values())
    if len(branches) == 2:
        source = b.source(at, "cast")
        pred = source[0] if source and source[0].dtype is boolean else b.not_equal(at, 0)
        return b.control("cond", [pred, *given], types, {"then": names[1], "else": names[0]})
    at = b.clip(b.index(at), low=0, high=len(branches) - 1)
    return b.control("switch", [at, *given], types, {"cases": names})


CALLED.update({"scan": scan, "while": while_, "cond": cond})
