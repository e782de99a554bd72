"""Scalars that a model has as constants keep their types, wherever they stand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import opstep
from opstep.runtime.ir.printer import print_module

NUMBERS = {
    "f16": (np.float16, 0.1, 3), "bf16": (ml_dtypes.bfloat16, 0.1, 3), "f32": (np.float32, 0.1, 3),
    "f64": (np.float64, 0.1, 1 / 3), "i8": (np.int8, 5, -7), "u8": (np.uint8, 5, 200),
    "i16": (np.int16, 5, -30000), "i32": (np.int32, 5, 2**24 + 1), "i64": (np.int64, 5 * 10**9, 7),
    "bool": (np.bool_, True, False),
}  # fmt: skip
ONLY_BOOL, ONLY_FLOAT, OF_ANY = ("And", "Or", "Xor"), ("Sum", "Mean"), ("Where", "Gather", "Equal")
# by the operator and its inputs: c is a bool, x a tensor; p and q are constants
NODES = (
    *("Where c p q", "Where c x q", "Where c p x", "Equal x p", "Add x p", "Sub p x", "Mul p x"),
    *("Div x p", "Div p x", "Mod x p", "Max x p q", "Min p q x", "Sum x p q", "Mean x p q"),
    *("Less p x", "GreaterOrEqual x q", "And x p", "Or p x", "Xor q x", "Clip x lo hi"),
    *("Add p q", "Mul p q", "Div p q", "Max p q", "Where c0 p q", "Gather v i", "Pow x p"),
)


def number(dtype: type) -> int:
    return h.np_dtype_to_tensor_dtype(np.dtype(dtype))


def constant(form: str, name: str, value: np.ndarray) -> tuple[list, dict]:
    """Nodes that make a constant, and initializers."""
    if form == "Constant":
        return [h.make_node(form, [], [name], value=numpy_helper.from_array(value, name))], {}
    if form == "Identity":
        return [h.make_node(form, [f"{name}_of"], [name])], {f"{name}_of": value}
    if form == "Cast":
        wide = value.astype(np.int64 if value.dtype.kind in "iub" else np.float64)
        return [h.make_node(form, [f"{name}_of"], [name], to=number(value.dtype))], {
            f"{name}_of": wide
        }
    if form == "ConstantOfShape":
        filled = numpy_helper.from_array(value.reshape(1), "v")
        made = h.make_node(form, [f"{name}_of"], [name], value=filled)
        return [made], {f"{name}_of": np.zeros(0, np.int64)}
    return [], {name: value.reshape(1) if form == "of one element" else value}


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        last = {"float64": 1e-15, "float32": 2e-7, "float16": 1e-3}.get(got.dtype.name, 8e-3)
        np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=2 * last)


FORMS = ("initializer", "Constant", "Identity", "Cast", "ConstantOfShape", "of one element")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NUMBERS)
def test_every_operator_takes_the_type(model, name, form):
    dtype, p, q = NUMBERS[name]
    p, q = np.asarray(p).astype(dtype), np.asarray(q).astype(dtype)
    x = np.array([1, 3]).astype(dtype)
    given = {"c": np.array([True, False]), "c0": np.array(True), "x": x, "i": np.array([0, 0])}
    constants = {"p": p, "q": q, "lo": min(p, q), "hi": max(p, q), "v": p.reshape(1)}
    for node in NODES:
        op, *inputs = node.split()
        if (op in ONLY_BOOL) != (name == "bool") and op not in OF_ANY:
            continue
        if op in ONLY_FLOAT and np.dtype(dtype).kind in "iu":
            continue
        nodes, weights = [], {}
        for k in {*inputs} & constants.keys():
            made, tensors = constant(form if k != "v" else "", k, constants[k])
            nodes, weights = nodes + made, weights | tensors
        more = {"fmod": 1} if op == "Mod" and np.dtype(dtype).kind not in "iu" else {}
        ran = {k: given[k] for k in inputs if k in given}
        types = {k: (number(v.dtype), list(v.shape)) for k, v in ran.items()}
        nodes.append(h.make_node(op, inputs, ["y"], **more))
        result = T.BOOL if op in ("Equal", "Less", "GreaterOrEqual") else number(dtype)
        one = (1,) if form == "of one element" else ()
        shape = np.broadcast_shapes(*(given[k].shape if k in given else one for k in inputs))
        net = model(nodes, types, {"y": (result, list(shape))}, weights)
        with np.errstate(all="ignore"):
            (want,) = ReferenceEvaluator(net).run(None, ran)
        same(opstep.from_onnx(net).run("main", ran)["y"], np.asarray(want))


POWERS = (2, 3, 0.5, -1, 5, 2049, 2**24 + 1)  # the last are odd, unless a narrow type rounds them
FLOATS, INTEGERS = ("f16", "f32", "f64"), ("i32", "i64")


@pytest.mark.parametrize("exponent", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("base", [*FLOATS, *INTEGERS])
def test_powers_of_two_types_have_the_type_of_the_first(model, base, exponent):
    """Constants or not, rounded once: as in f64."""
    to, of = NUMBERS[base][0], NUMBERS[exponent][0]
    node = h.make_node("Pow", ["x", "p"], ["y"])
    for power in POWERS:
        with np.errstate(all="ignore"):
            p = np.array([power]).astype(of)
        if float(p[0]) != power:
            continue
        x = np.array([-1, 1, 4] if power > 3 or base in INTEGERS else [2, 4, 9]).astype(to)
        x = x[: 3 if -1 <= power <= 3 else 2]
        if power == 0.5:
            x = np.abs(x)
        with np.errstate(all="ignore"):
            want = np.trunc(x.astype("f8") ** float(power)) if base in INTEGERS else None
            want = (x.astype("f8") ** float(power) if want is None else want).astype(to)
        types = {"x": (number(to), list(x.shape)), "p": (number(of), [1])}
        result = {"y": (number(to), list(x.shape))}
        for is_constant in (True, False):
            ran = {"x": x} if is_constant else {"x": x, "p": p}
            net = model([node], {k: types[k] for k in ran}, result, {"p": p} if is_constant else {})
            same(opstep.from_onnx(net).run("main", ran)["y"], want)


def test_a_type_is_written_where_it_would_be_another(model):
    def text(dtype: type, t: int) -> str:
        nodes = [
            h.make_node("Where", ["c", "p", "q"], ["w"]),
            h.make_node("Mul", ["w", "p"], ["y"]),
        ]
        weights = {"p": np.asarray(0.1, dtype), "q": np.asarray(3, dtype)}
        net = model(nodes, {"c": (T.BOOL, [2])}, {"y": (t, [2])}, weights)
        return print_module(opstep.from_onnx(net).module)

    assert text(np.float32, T.FLOAT) == (
        "graph main(c: bool[2]) -> f32[2] {\n"
        "  w = where(c, 0.1, 3.0)\n  y = mul(w, 0.1)\n  return y\n}\n"
    )
    assert text(np.float64, T.DOUBLE) == (
        "graph main(c: bool[2]) -> f64[2] {\n  p_full = full(shape=[], value=0.1, dtype=f64)\n"
        "  w = where(c, p_full, 3.0)\n  y = mul(w, 0.1)\n  return y\n}\n"
    )


@pytest.mark.parametrize("name", ["f16", "f64", "i64"])
def test_parts_of_a_model_take_the_type(model, name):
    """Branches, the body of a loop, a function."""
    dtype, p, q = NUMBERS[name]
    t, given = number(dtype), {"c": np.array([True, False]), "b": np.array(True)}
    weights = {"p": np.asarray(p).astype(dtype), "q": np.asarray(q).astype(dtype)}

    def branch(result: str) -> object:
        node = h.make_node("Where", ["c", "p", "q"], [result])
        return h.make_graph([node], "branch", [], [h.make_tensor_value_info(result, t, [2])])

    info = h.make_tensor_value_info
    body = h.make_graph(
        [
            h.make_node("Where", ["c", "p", "q"], ["w"]),
            h.make_node("Add", ["sum", "w"], ["more"]),
            h.make_node("Identity", ["on"], ["still"]),
        ],
        "body",
        [info("k", T.INT64, []), info("on", T.BOOL, []), info("sum", t, [2])],
        [info("still", T.BOOL, []), info("more", t, [2])],
    )
    function = h.make_function(
        "own", "Chosen", ["c", "p", "q"], ["y"],
        [h.make_node("Where", ["c", "p", "q"], ["w"]), h.make_node("Mul", ["w", "p"], ["y"])],
        [h.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [
        h.make_node("If", ["b"], ["x"], then_branch=branch("yes"), else_branch=branch("no")),
        h.make_node("Loop", ["turns", "b", "x"], ["z"], body=body),
        h.make_node("Chosen", ["c", "p", "q"], ["v"], domain="own"),
        h.make_node("Sub", ["z", "v"], ["y"]),
    ]
    types = {"c": (T.BOOL, [2]), "b": (T.BOOL, [])}
    opsets = [h.make_opsetid("own", 1)]
    net = model(
        nodes, types, {"y": (t, [2])}, {**weights, "turns": np.array(3)}, opsets=opsets,
        functions=[function],
    )  # fmt: skip
    (want,) = ReferenceEvaluator(net).run(None, given)
    same(opstep.from_onnx(net).run("main", given)["y"], want)


def test_results_of_integers_are_integers(model):
    """Where a rule would make floats of them, ONNX's own definition goes, or none."""
    x, slope = np.array([2**24 + 1, -7], np.int32), np.array([3], np.int32)
    types, result = {"x": (T.INT32, [2]), "s": (T.INT32, [1])}, {"y": (T.INT32, [2])}
    net = model([h.make_node("PRelu", ["x", "s"], ["y"])], types, result)
    same(
        opstep.from_onnx(net).run("main", {"x": x, "s": slope})["y"], np.where(x < 0, slope * x, x)
    )
    net = model([h.make_node("Mean", ["x", "x"], ["y"])], types, result)
    with pytest.raises(opstep.OpstepError, match="its result would be f32, not i32"):
        opstep.from_onnx(net)
