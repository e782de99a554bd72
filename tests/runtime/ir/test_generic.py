"""Graphs that are generic in their element types: what the verifier finds in them, and in calls."""

from __future__ import annotations

import copy
import pickle

import pytest
from small_ops import SMALL_OPS

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Apply, Graph
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import (
    DTYPES,
    FAMILIES,
    DependsOnType,
    assignments,
    bf16,
    f16,
    f32,
    f64,
    i32,
    type_variable,
)
from opstep.runtime.ir.verify import verify


def types_in(head: str, *body: str) -> dict[str, str]:
    """The types of values of one graph."""
    text = "\n".join(f"  {line}" for line in body)
    verified = verify(parse(f"graph g{head} {{\n{text}\n}}\n"), SMALL_OPS)
    return {name: str(t) for name, t in verified.graphs["g"].types.items()}


def test_results_are_of_the_variable_where_they_follow_it() -> None:
    found = types_in(
        "<T: float>(x: T[N, K], n: i32[])",
        "a = relu(x)",
        "b = add(x, n)",
        "c = mul(x, 0.5)",
        "d = full(shape=[N], value=1, dtype=T)",
        "e = concat(x, x, axis=1)",
    )
    assert found == {
        "x": "T[N, K]", "n": "i32[]", "a": "T[N, K]", "b": "T[N, K]", "c": "T[N, K]", "d": "T[N]",
        "e": "T[N, K*2]",
    }  # fmt: skip


def test_results_are_of_one_type_where_that_is_the_same_for_all() -> None:
    found = types_in(
        "<T: float, I: int>(x: T[N], w: f64[N], k: I[N])",
        "a = less(x, 0.0)",
        "b = add(x, w)",
        "c = cast(x, dtype=i8)",
        "d = exp(k)",
        "e = add(x, k)",
    )
    assert [found[n] for n in "abcde"] == ["bool[N]", "f64[N]", "i8[N]", "f32[N]", "T[N]"]


def test_results_of_a_type_without_a_name_can_be_cast() -> None:
    found = types_in(
        "<T: float>(x: T[N], w: f32[N])",
        "a = mul(x, w)",
        "b = exp(a)",
        "c = cast(b, dtype=T)",
    )
    assert [found[n] for n in "abc"] == ["f64|f32[N]", "f64|f32[N]", "T[N]"]


def test_a_call_binds_variables_as_it_binds_symbols() -> None:
    module = parse("""\
        graph outer<U: float>(x: U[M], k: i32[M]) -> U[M], i32[M] {
          y = inner(x)
          z = inner(k)
          return y, z
        }
        graph inner<T>(x: T[N]) -> T[N] {
          return x
        }
        """)
    of_float, of_int, _ = verify(module, SMALL_OPS).graphs["outer"].applications
    assert of_float is not None and of_int is not None
    assert of_float.symbols["T"] is type_variable("U", "float")
    assert of_int.symbols["T"] is i32
    assert str(of_float.resolved.results[0]) == "U[M]"


def test_a_variable_belongs_to_its_graph_alone() -> None:
    text = """\
graph a<T: float>(x: T[N]) -> T[N] {
  y: T[N] = relu(x)
  return y
}

graph b<T: int>(x: T[N], k: f32[T2]) -> T[N] {
  y: T[N] = relu(x)
  return y
}

graph c(x: f32[T]) -> f32[T] {
  y: f32[T] = relu(x)
  return y
}
"""
    module = parse(text)
    assert print_module(module) == text
    verified = verify(module, SMALL_OPS)
    assert verified.graphs["a"].types["y"].dtype is type_variable("T", "float")
    assert verified.graphs["b"].types["y"].dtype is type_variable("T", "int")
    assert verified.graphs["c"].types["y"].dtype is f32
    with pytest.raises(OpstepError, match="T is not an element type"):
        parse(text + "param w: T[4]\n")


def test_variables_and_what_depends_on_them_are_one_object_each() -> None:
    module = parse("graph g<T: float>(x: T[N], w: f32[N]) { y = add(x, w) }")
    dtype = verify(module, SMALL_OPS).graphs["g"].types["y"].dtype
    for t in (type_variable("T", "float"), dtype):
        assert pickle.loads(pickle.dumps(t)) is t
        assert copy.deepcopy(t) is t
    assert dtype.bound({"T": f16}) is f32
    assert dtype.bound({"T": f64}) is f64
    assert dtype.bound({"T": type_variable("T", "float")}) is dtype


def test_properties_that_differ_are_not_told() -> None:
    t = type_variable("T", "float")
    assert t.is_float and t.kind == "f"
    with pytest.raises(DependsOnType, match="depends on what T is"):
        _ = t.itemsize
    with pytest.raises(DependsOnType):
        _ = type_variable("T", "any").is_float
    assert type_variable("I", "int").is_integer


def test_families_hold_what_their_names_say() -> None:
    assert {*FAMILIES["any"]} == {*DTYPES.values()}
    assert {*FAMILIES["float"]} == {f64, f32, f16, bf16}
    pairs = list(assignments((type_variable("T", "float"), type_variable("I", "index"))))
    assert len(pairs) == 8
    assert {*pairs[0]} == {"T", "I"}


def test_a_default_family_is_not_written() -> None:
    module = parse("graph g<T: any, U: int>(x: T[], y: U[]) {\n}\n")
    assert print_module(module) == "graph g<T, U: int>(x: T[], y: U[]) {\n}\n"
    assert parse(print_module(module)) == module


def test_a_long_generic_head_is_broken_inside_its_parentheses() -> None:
    inputs = ", ".join(f"input_{k}: T[N, M]" for k in range(8))
    text = print_module(parse(f"graph g<T: float>({inputs}) {{\n}}\n"))
    assert text.startswith("graph g<T: float>(\n    input_0: T[N, M],")
    assert print_module(parse(text)) == text


def test_recursion_that_changes_the_type_is_checked_once() -> None:
    module = parse("""\
        graph rounds<T: float>(x: T[N], again: bool[]) -> f32[N] {
          narrow = cast(x, dtype=f16)
          y = cond(again, narrow, again, then=rounds, else=ends)
          return y
        }
        graph ends<T: float>(x: T[N], again: bool[]) -> f32[N] {
          y = cast(x, dtype=f32)
          return y
        }
        """)
    (_, application, _) = verify(module).graphs["rounds"].applications
    statement = module.graphs["rounds"].body[1]
    assert isinstance(statement, Apply) and isinstance(module.graphs["rounds"], Graph)
    assert application is not None
    assert str(application.resolved.results[0]) == "f32[N]"
