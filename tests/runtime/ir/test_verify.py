"""The verifier: what it finds out about programs that are right. Wrong ones: see test_errors.py."""

from __future__ import annotations

import math
import time

import pytest
from programs import chain
from small_ops import SMALL_OPS

from opstep.runtime.ir.calls import literal_fault
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.dims import symbol
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import DTYPES, TensorType, boolean, f16, f32, i8, i32, i64
from opstep.runtime.ir.verified import Verified
from opstep.runtime.ir.verify import bind_symbols, verify, verify_with_diagnostics

N, M, P = symbol("N"), symbol("M"), symbol("P")


def check(text: str, *library: str) -> Verified:
    modules = [parse(lib, f"lib{k}.opg") for k, lib in enumerate(library)]
    return verify(parse(text, "main.opg"), SMALL_OPS, modules)


def f(*shape) -> TensorType:
    return TensorType(f32, shape)


PROGRAM = """\
param w: f32[4, 8] = normal(std=0.2)
param b: f16[4] = full(value=2)
state step: i32[] = 0
state seen: bool[] = false
state given: f32[3]

graph layer(x: f32[N, 8]) -> f32[N, 4] {
  y = linear(x, w)
  z = leaky_relu(y, slope=1)
  return z
}

graph main(a: f32[M, 8], n: i32[]) -> f32[2*M, 4], i32[] {
  c = concat(a, a)
  d = layer(c)
  e = mul(d, 2)
  first, second = split(e, pieces=2)
  small = less(n, 10)
  assert small, "too many"
  next = add(step, 1)
  step <- next
  seen <- small
  flat = reshape(e, shape=[M*8])
  back = reshape(flat, shape=[M*2, 4])
  return back, next
}
"""


def test_types_of_all_values() -> None:
    verified = check(PROGRAM)
    types = verified.graphs["main"].types
    assert types["a"] == f(M, 8)
    assert types["c"] == f(M * 2, 8)
    assert types["d"] == f(M * 2, 4)
    assert types["e"] == f(M * 2, 4)
    assert types["first"] == types["second"] == f(M, 4)
    assert types["small"] == TensorType(boolean, ())
    assert types["step"] == types["next"] == TensorType(i32, ())
    assert types["flat"] == f(M * 8)
    assert set(verified.graphs["layer"].types) == {"x", "w", "y", "z"}


def test_what_each_statement_comes_to() -> None:
    verified = check(PROGRAM)
    main = verified.graphs["main"]
    assert len(main.applications) == len(main.graph.body)
    assert main.symbols == ("M",)
    by_name = {
        s.results[0].name.text: a
        for s, a in zip(main.graph.body, main.applications, strict=True)
        if a is not None
    }
    call = by_name["d"]
    assert call.op is None
    assert call.graph is verified.graphs["layer"].graph
    assert call.symbols == {"N": M * 2}
    assert call.resolved.operands == (f(M * 2, 8),)
    product = by_name["e"]
    assert product.op is SMALL_OPS["mul"]
    assert product.resolved.operands == (f(M * 2, 4), f())  # the literal has become f32
    assert by_name["first"].attrs == {"pieces": 2, "axis": 0}
    assert by_name["flat"].attrs == {"shape": (M * 8,)}
    layer = verified.graphs["layer"]
    assert layer.applications[0].resolved.operands == (f(N, 8), f(4, 8), None)
    assert layer.applications[1].attrs == {"slope": 1.0}


def test_statements_that_repeat_share_what_they_come_to() -> None:
    text = "graph g(x: f32[N]) {\n  a = relu(x)\n  b = relu(a)\n  c = leaky_relu(a, slope=1)\n"
    text += "  d = leaky_relu(b, slope=1)\n  e = leaky_relu(b, slope=1.0)\n}\n"
    a, b, c, d, e = check(text).graphs["g"].applications
    assert a is b
    assert c is d
    assert d is not e


def test_initialisers_know_the_declared_shape_and_dtype() -> None:
    verified = check(PROGRAM)
    assert set(verified.inits) == {"w", "b"}
    assert verified.inits["w"].attrs == {"shape": (4, 8), "std": 0.2, "dtype": f32}
    assert verified.inits["b"].attrs == {"shape": (4,), "value": 2, "dtype": f16}
    assert verified.inits["b"].resolved.results == (TensorType(f16, (4,)),)


def test_steps_are_counted_through_calls() -> None:
    verified = check(PROGRAM)
    assert verified.graphs["layer"].steps == 2
    assert verified.graphs["main"].steps == 9  # eight applies, one of them of two ops


def test_graphs_may_stand_in_any_order() -> None:
    first, *rest = PROGRAM.split("graph main")
    tensors, layer = first.split("graph layer")
    check(tensors + "graph main" + rest[0] + "\ngraph layer" + layer)


def test_a_literal_takes_the_type_that_it_meets() -> None:
    text = "graph g(x: f16[N], i: i8[], b: bool[]) {\n  h = mul(x, 3)\n  k = add(i, 1)\n"
    text += "  l = add(i, 0.5)\n  m = add(1, 2)\n  n = add(1, 2.5)\n}\n"
    types = check(text).graphs["g"].types
    assert types["h"].dtype is f16
    assert types["k"].dtype is i8
    assert types["l"].dtype is f32
    assert types["m"] == TensorType(i32, ())
    assert types["n"].dtype is f32


def test_literals_fit_their_types() -> None:
    for t in DTYPES.values():
        assert not literal_fault(1, t)
        assert not literal_fault(0, t)
        assert bool(literal_fault(-1, t)) == (t.kind in "ub")
        assert bool(literal_fault(2, t)) == (t.kind == "b")
        assert bool(literal_fault(0.5, t)) != t.is_float
        assert bool(literal_fault(math.inf, t)) != t.is_float
    assert not literal_fault(127, i8)
    assert literal_fault(128, i8)
    assert not literal_fault(-128, i8)
    assert not literal_fault(2**63 - 1, i64)
    assert not literal_fault(65504, f16)
    assert literal_fault(65520.0, f16)
    assert literal_fault(-1e300, f32)
    assert not literal_fault(math.nan, f16)


# --- libraries ------------------------------------------------------------------------------------

LIBRARY = """\
graph double(x: f32[N]) -> f32[N] {
  y = add(x, x)
  return y
}
graph quadruple(x: f32[N]) -> f32[N] {
  y = double(x)
  z = double(y)
  return z
}
graph broken(x: f32[N]) -> f32[N] {
  y = no_such_op(x)
  return y
}
"""


def test_graphs_of_a_library_can_be_called() -> None:
    text = "graph g(x: f32[M]) -> f32[M] {\n  y = quadruple(x)\n  return y\n}\n"
    verified = check(text, LIBRARY)
    assert set(verified.graphs) == {"g", "quadruple", "double"}  # those that are reached
    assert verified.graphs["double"].source.path == "lib0.opg"
    assert verified.graphs["g"].steps == 2


def test_graphs_of_a_library_can_be_named_in_attributes() -> None:
    text = "graph g(x: f32[M], b: bool[]) -> f32[M] {\n"
    text += "  y = cond(b, x, then=double, else=quadruple)\n  return y\n}\n"
    assert set(check(text, LIBRARY).graphs) == {"g", "quadruple", "double"}


def test_a_graph_of_the_module_goes_before_one_of_the_library() -> None:
    text = "graph double(x: f32[M]) -> f32[M] {\n  y = relu(x)\n  return y\n}\n"
    verified = check(text, LIBRARY)
    assert verified.graphs["double"].source.path == "main.opg"


def test_graphs_of_a_library_call_each_other() -> None:
    text = "graph double(x: f32[M]) -> f32[M] {\n  y = quadruple(x)\n  return y\n}\n"
    text += "graph library_double() {\n}\n"
    verified = check(text, LIBRARY)
    called = [s.callee.text for s in verified.graphs["quadruple"].graph.body[:-1]]
    assert called == ["library_double_"] * 2
    assert verified.graphs[called[0]].source.path == "lib0.opg"


def test_graphs_of_a_library_see_no_named_tensors() -> None:
    text = "param y: f32[3] = zeros()\ngraph g(x: f32[M]) -> f32[M] {\n"
    text += "  z = quadruple(x)\n  return z\n}\n"
    verified = check(text, LIBRARY)
    assert str(verified.graphs["quadruple"].types["y"]) == "f32[N]"
    assert effects_of(["g"], verified).touches == ()


def test_errors_in_a_library_are_shown_in_its_text() -> None:
    text = "graph g(x: f32[M]) -> f32[M] {\n  y = broken(x)\n  return y\n}\n"
    with pytest.raises(OpstepError, match=r"lib0.opg:11:7: error: there is no op or graph"):
        check(text, LIBRARY)


# --- sizes at run time ----------------------------------------------------------------------------


def graph(inputs: str):
    return parse(f"graph g({inputs}) {{\n}}\n").graphs["g"]


def test_symbols_are_bound_by_the_inputs() -> None:
    g = graph("x: f32[N, 8], y: f32[2*N, M//2], z: i32[M]")
    types = [f(3, 8), f(6, 2), TensorType(i32, (5,))]
    assert bind_symbols(g, types) == {"N": 3, "M": 5}
    assert bind_symbols(g, dict(zip("xyz", types, strict=True))) == {"N": 3, "M": 5}
    assert bind_symbols(graph(""), []) == {}
    assert bind_symbols(graph("x: f32[N]"), [f(0)]) == {"N": 0}


@pytest.mark.parametrize(
    "inputs, types, message",
    [
        (
            "x: f32[N, 8]",
            [f(3, 9)],
            r"wants f32\[3, 8\] as x \(declared f32\[N, 8\]\), not f32\[3, 9\]",
        ),
        ("x: f32[N]", [TensorType(i32, (3,))], r"wants f32\[N\] as x, not i32\[3\]"),
        ("x: f32[N]", [f()], r"wants f32\[N\] as x, not f32\[\]"),
        ("x: f32[N], y: f32[N, 2]", [f(3), f(4, 2)], "it is 3 in axis 0 of x and 4 in axis 0 of y"),
        ("x: f32[N], y: f32[2*N]", [f(3), f(5)], r"wants f32\[6\] as y \(declared f32\[N\*2\]\)"),
        ("x: f32[N], y: f32[8//N]", [f(0), f(5)], "divided by zero with N = 0"),
        ("x: f32[N], y: f32[N - 4]", [f(3), f(1)], "negative with N = 3"),
        ("x: f32[N]", [], "takes 1 operand, not 0"),
        ("x: f32[N]", {"y": f(3)}, "has no input y"),
        ("x: f32[N], y: f32[N]", {"x": f(3)}, "needs the input y"),
    ],
)
def test_inputs_that_do_not_fit_say_so(inputs: str, types, message: str) -> None:
    text = f"graph g({inputs}) {{\n}}\n"
    module = parse(text, "main.opg")
    with pytest.raises(InputError, match=message) as error:
        bind_symbols(module.graphs["g"], types, module.source)
    assert str(error.value).startswith("main.opg:1:")


# --- robustness and speed -------------------------------------------------------------------------


def test_the_global_table_is_the_default() -> None:
    verify(Module(()))
    assert {"while", "cond", "switch"} <= OPS.keys()


def test_a_broken_module_is_verified_as_far_as_it_goes() -> None:
    text = "graph g(x: f32[N]) -> f32[N] {\n  y = nothing(x)\n  z = relu(x)\n  return z\n}\n"
    verified, diagnostics = verify_with_diagnostics(parse(text), SMALL_OPS)
    assert len(diagnostics) == 1
    assert verified.graphs["g"].types == {"x": f(N), "z": f(N)}
    assert [a is None for a in verified.graphs["g"].applications] == [True, False, True]


def test_thousands_of_errors_come_to_an_end() -> None:
    lines = "\n".join(f"  v{k} = relu(w{k})" for k in range(20_000))
    started = time.process_time()
    _, diagnostics = verify_with_diagnostics(parse(f"graph g() {{\n{lines}\n}}\n"), SMALL_OPS)
    assert len(diagnostics) == 1_001
    assert time.process_time() - started < 10


def test_long_chains_of_calls_are_no_matter_of_depth() -> None:
    graphs = ["graph g0(x: f32[N]) -> f32[N] {\n  return x\n}"]
    for k in range(1, 3_000):
        body = f"  y = g{k - 1}(x)\n  return y\n"
        graphs.append(f"graph g{k}(x: f32[N]) -> f32[N] {{\n{body}}}")
    verified = check("\n".join(reversed(graphs)))
    assert verified.graphs["g2999"].steps == 0


def test_time_grows_with_the_number_of_statements_and_no_faster() -> None:
    def seconds(count: int) -> float:
        module = parse(chain(count))
        best = math.inf
        for _ in range(3):
            started = time.process_time()
            verify(module, SMALL_OPS)
            best = min(best, time.process_time() - started)
        return best / count

    assert seconds(32_000) < 4 * seconds(2_000)


def test_time_grows_with_the_number_of_graphs_and_no_faster() -> None:
    def seconds(count: int) -> float:
        form = "param w{0}: f32[4]\ngraph g{0}(x: f32[4]) -> f32[4] {{\n"
        form += "  y = add(x, w{0})\n  return y\n}}"
        module = parse("\n".join(form.format(k) for k in range(count)))
        best = math.inf
        for _ in range(3):
            started = time.process_time()
            verify(module, SMALL_OPS)
            best = min(best, time.process_time() - started)
        return best / count

    assert seconds(8_000) < 4 * seconds(500)
