"""Control flow: ops that call the graphs named in their attributes, run by the interpreter.

Such a graph may update named tensors, and may be the graph that contains the statement.
"""

# They are declared like other ops and are found among them. What they give depends on the graphs
# that they name, so in place of `infer` they have `Control.resolve_call`, which is handed those.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from opstep.runtime.ir.calls import amount, literal_fault, resolve_call
from opstep.runtime.ir.graph import Graph
from opstep.runtime.ir.op import Mismatch, Op, Ref, Resolved, Traits
from opstep.runtime.ir.types import DType, TensorType, boolean, i32, i64

Types = Sequence[TensorType | int | float]
Graphs = Callable[[str], Graph]

TEST, BODY, BRANCH = "test", "body", "branch"


class GraphCall(NamedTuple):
    """A graph that an op of control flow runs. `role`: `TEST`, `BODY` or `BRANCH`; `turn`: of the
    loop.
    """

    graph: str
    role: str
    turn: int = 0


class Control(Op):
    """Base of the ops that call graphs.

    Whoever runs one hands the operands (without the first, where that `selects`) to `first_call`'s
    graph. What that gives goes to `next_call`'s, and so on; a test's is read instead, and hands
    its operands on. Where no call follows these are the results.
    """

    traits = Traits(host=True)
    selects: ClassVar[bool] = True  # the first operand decides which graph is called
    results: ClassVar[tuple[str, ...]] = ("y...",)
    infer = None
    oracle = None
    cpu = None

    @staticmethod
    def grad(*_: Any) -> Any:
        """Derivatives are graphs that control flow calls: `transforms.control` writes them."""
        raise NotImplementedError

    @staticmethod
    def resolve_call(types: Types, attrs: dict[str, Any], graphs: Graphs) -> Resolved:
        """The types of operands (literals among them as numbers) and results.

        `attrs` are complete, and `graphs` finds the graphs that they name. Raises `Mismatch`.
        """
        raise NotImplementedError

    @staticmethod
    def first_call(attrs: dict[str, Any], selector: Any) -> GraphCall:
        """What runs first. `selector`: the value of the operand that `selects`, else None. Raises
        `Mismatch`.
        """
        raise NotImplementedError

    @staticmethod
    def next_call(attrs: dict[str, Any], done: GraphCall, holds: bool) -> GraphCall | None:
        """What runs behind a call; None where that was the last. `holds`: what a test gave; False
        once an assert has failed. Raises `Mismatch`.
        """
        return None


class while_(Control):
    """Applies `body` to the operands as long as `test` of them is true; returns the last values.

    `test` takes the operands and returns one `bool[]`; `body` takes them and returns the same
    types, so shapes and element types cannot change. If the test is still true after `limit`
    iterations, the run fails.
    """

    signature = "while(x: T*, *, test: graph, body: graph, limit: int = 1000000)"
    selects = False

    @staticmethod
    def resolve_call(types: Types, attrs: dict[str, Any], graphs: Graphs) -> Resolved:
        if attrs["limit"] < 0:
            raise Mismatch("limit cannot be negative", "limit")
        body = graphs(attrs["body"].name)
        carried, results = _call(body, types, "body", 0)
        if results != carried:
            raise Mismatch(
                f"the body must return what it takes, {_listed(carried)}, "
                f"but {body.name.text} returns {_listed(results)}",
                "body",
            )
        _returns_bool(graphs(attrs["test"].name), carried)
        return Resolved(carried, results)

    @staticmethod
    def first_call(attrs: dict[str, Any], selector: Any) -> GraphCall:
        return GraphCall(attrs["test"].name, TEST)

    @staticmethod
    def next_call(attrs: dict[str, Any], done: GraphCall, holds: bool) -> GraphCall | None:
        if done.role == BODY:
            return GraphCall(attrs["test"].name, TEST, done.turn + 1)
        if not holds:
            return None
        if done.turn >= attrs["limit"]:
            hint = "raise limit=, or see whether its test can become false"
            raise Mismatch(f"the loop has not ended after {done.turn} turns", hint=hint)
        return GraphCall(attrs["body"].name, BODY, done.turn)


class cond(Control):
    """Calls `then` with the operands if `pred` is true, otherwise `else`.

    Both graphs take the operands and return the same types.
    """

    signature = "cond(pred: B, x: T*, *, then: graph, else: graph)"

    @staticmethod
    def resolve_call(types: Types, attrs: dict[str, Any], graphs: Graphs) -> Resolved:
        first = _selector("cond", types, "pred", (boolean,), "a bool[]")
        branches = {"then": attrs["then"], "else": attrs["else"]}
        return _branches(first, types, branches, graphs)

    @staticmethod
    def first_call(attrs: dict[str, Any], selector: Any) -> GraphCall:
        return GraphCall(attrs["then" if selector else "else"].name, BRANCH)


class switch(Control):
    """Calls the graph `cases[index]` with the operands.

    All graphs take the operands and return the same types. If `index` is out of range, the run
    fails.
    """

    signature = "switch(index: X, x: T*, *, cases: graphs)"

    @staticmethod
    def resolve_call(types: Types, attrs: dict[str, Any], graphs: Graphs) -> Resolved:
        first = _selector("switch", types, "index", (i32, i64), "an i32[] or i64[]")
        if not attrs["cases"]:
            raise Mismatch("switch needs one case at least", "cases")
        branches = {f"case {k}": case for k, case in enumerate(attrs["cases"])}
        return _branches(first, types, branches, graphs, at="cases")

    @staticmethod
    def first_call(attrs: dict[str, Any], selector: Any) -> GraphCall:
        cases, index = attrs["cases"], int(selector)
        if not 0 <= index < len(cases):
            raise Mismatch(f"index {index} is none of the {len(cases)} cases 0 to {len(cases) - 1}")
        return GraphCall(cases[index].name, BRANCH)


CONTROL: dict[str, type[Control]] = {"while": while_, "cond": cond, "switch": switch}


def _selector(op: str, types: Types, name: str, dtypes: tuple[DType, ...], form: str) -> TensorType:
    """The type of the operand that selects a branch."""
    if not types:
        raise Mismatch(f"{op} needs {form} as its first operand, {name}")
    t = types[0]
    if isinstance(t, TensorType):
        if t.rank or t.dtype not in dtypes:
            raise Mismatch(f"{op} wants {form} as {name}, not {t}", 0)
        return t
    fault = literal_fault(t, dtypes[-1])
    if fault:
        raise Mismatch(fault, 0)
    return TensorType(dtypes[-1], ())


def _branches(
    first: TensorType, types: Types, branches: dict[str, Ref], graphs: Graphs, at: str = ""
) -> Resolved:
    """Calls of several graphs with the same operands, which must give the same types."""
    agreed: tuple | None = None
    for role, ref in branches.items():
        graph = graphs(ref.name)
        operands, results = _call(graph, types[1:], role, 1, at or role)
        if agreed is None:
            agreed = role, operands, results
        elif (operands, results) != agreed[1:]:
            before, operands_before, results_before = agreed
            verb, now, then = "returns", results, results_before
            if operands != operands_before:  # a literal adapts to what each graph takes
                verb, now, then = "takes", operands, operands_before
            raise Mismatch(
                f"all branches must agree: {before} {verb} {_listed(then)}, "
                f"{role} {verb} {_listed(now)}",
                at or role,
            )
    assert agreed is not None
    return Resolved((first, *agreed[1]), agreed[2])


def _call(graph: Graph, types: Types, role: str, first: int, at: str = ""):
    """Types of operands and results of a call of a graph that an attribute names."""
    what = f"{graph.name.text} ({role})"
    if len(types) != len(graph.inputs):
        form = ", ".join(str(b.type) for b in graph.inputs)
        raise Mismatch(
            f"{what} takes {amount(len(graph.inputs), 'operand')}, not {len(types)}",
            at or role,
            f"it takes ({form})",
        )
    resolved, _ = resolve_call(graph, types, what, first)
    return resolved.operands, resolved.results


def _returns_bool(test: Graph, carried: tuple) -> None:
    _, results = _call(test, carried, "test", 0)
    if results != (TensorType(boolean, ()),):
        raise Mismatch(
            f"the test must return one bool[], but {test.name.text} returns {_listed(results)}",
            "test",
        )


def _listed(types: Sequence) -> str:
    return ", ".join(map(str, types)) or "nothing"
