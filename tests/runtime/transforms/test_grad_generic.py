"""Gradients of generic graphs: one text for all types, which says for each what its own would."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.kernels.stdlib import library
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Graph, Module
from opstep.runtime.ir.parser import load, parse
from opstep.runtime.ir.printer import print_graph, print_module
from opstep.runtime.ir.types import dtype
from opstep.runtime.ir.verify import verify, verify_with_diagnostics
from opstep.runtime.transforms.grad import GradientError, grad

KERNELS = Path(__file__).parents[2] / "kernels"
FAMILIES = sorted(p.name for p in KERNELS.iterdir() if list(p.glob("*.opg")) and p.name != "errors")
FEW = 6  # of a file; the others differ in sizes alone
NOT_GENERIC = ("bitcast",)  # how many elements its bits are depends on the type


def in_type(text: str, t: str, was: str = "f32") -> str:
    return re.sub(rf"\b{was}\b", t, text)


def gradient(text: str, name: str, wrt: list[str]) -> tuple[Graph, ...] | None:
    try:
        return grad(parse(text), name, wrt, seeded=True, library=library())
    except GradientError:
        return None


def is_wrong(text: str) -> bool:
    return bool(verify_with_diagnostics(parse(text), library=library())[1])


def without_lines(graph: Graph) -> Graph:
    return parse(re.sub(r" at \".*", "", print_graph(graph))).graphs[graph.name.text]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_each_op(family):
    compared = 0
    for path in sorted((KERNELS / family).glob("*.opg")):
        graphs = list(load(path).graphs.values())[:FEW]
        for graph in graphs if path.stem not in NOT_GENERIC else ():
            name, text = graph.name.text, print_graph(graph)
            text = text[text.index("graph ") :]
            wrt = [b.name.text for b in graph.inputs if b.type and str(b.type.dtype) == "f32"]
            if not wrt or re.search(r"f64|f16", text) or is_wrong(in_type(text, "f16")):
                continue  # it takes integers alone
            head = f"graph {name}<T: float>("
            made = gradient(in_type(text, "T").replace(f"graph {name}(", head), name, wrt)
            own = gradient(in_type(text, "f16"), name, wrt)
            # Inside a composite, and in statistics of rows, halves are f32: that is named.
            assert (made is None) == (own is None or "dtype=f32" in print_graph(own[0]))
            if made is None or own is None or (path.stem, name) == ("xlogy", "literal"):
                continue
            bound = in_type(print_graph(made[0]), "f16", "T").replace("<f16: float>", "")
            assert without_lines(parse(bound).graphs[f"{name}_grad"]) == without_lines(own[0])
            compared += 1
    assert compared or family in ("random", "statistics")


BLOCK = """\
graph loss<T: float>(x: T[N, D], w: T[K, D], label: i32[N], go: bool[]) -> T[] {
  s = layer_norm(x, shape=[D])
  y = linear(s, w)
  h = cond(go, y, then=squared, else=same)
  z, n = while(h, 0, test=few, body=grow)
  l = softmax_cross_entropy(z, label)
  return l
}

graph squared<U: number>(x: U[N, K]) -> U[N, K] {
  y = mul(x, x)
  return y
}

graph same<U>(x: U[N, K]) -> U[N, K] {
  return x
}

graph few<T>(x: T[N, K], k: i32[]) -> bool[] {
  more = less(k, 3)
  return more
}

graph grow<T: float>(x: T[N, K], k: i32[]) -> T[N, K], i32[] {
  y = sin(x)
  next = add(k, 1)
  return y, next
}
"""


def inputs(t: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(dtype(t).numpy) for s in ((4, 3), (5, 3)))
    return {"x": x, "w": w, "label": np.array([0, 4, 2, 1], "i4"), "go": np.array(True)}


@pytest.mark.parametrize("t", ["f64", "f32", "f16", "bf16"])
def test_one_gradient_serves_all_types(t):
    program = opstep.loads(BLOCK).with_grad("loss", ["x", "w"])
    text = print_module(program.module)
    assert print_module(parse(text)) == text
    found = opstep.loads(text).run("loss_grad", inputs(t)).outputs
    own = re.sub(r"<.*?>", "", re.sub(r"\b[TU]\b", t, BLOCK))
    expected = opstep.loads(own).with_grad("loss", ["x", "w"]).run("loss_grad", inputs(t)).outputs
    assert [a.dtype for a in found] == [dtype(t).numpy] * 3
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def test_the_gradient_of_a_gradient():
    program = opstep.loads("""\
        graph cubes<T: float>(x: T[N]) -> T[] {
          y = pow(x, 3.0)
          l = sum(y)
          return l
        }
        graph slope<T: float>(x: T[N]) -> T[] {
          l, d = cubes_grad(x)
          s = sum(d)
          return s
        }
        graph cubes_grad<T: float>(x: T[N]) -> T[], T[N] {
          l = cubes(x)
          square = mul(x, x)
          d = mul(square, 3.0)
          return l, d
        }
        """)
    twice = program.with_grad("slope", ["x"])
    for t in ("f8", "f4", "f2"):
        result = twice.run("slope_grad", {"x": np.array([1, 2, -3], t)})
        assert result.outputs[1].tolist() == [6, 12, -18]
        assert result.outputs[1].dtype == t


def test_a_generic_callee_is_inlined_in_the_type_of_its_caller():
    program = opstep.loads("""\
        graph loss(h: f16[N]) -> f16[] {
          y = scaled(h)
          l = sum(y)
          return l
        }
        graph scaled<T: float>(x: T[M]) -> T[M] {
          ones = full(shape=[M], value=2.0, dtype=T)
          y = mul(x, ones)
          z = cast(y, dtype=T)
          return z
        }
        """).with_grad("loss", ["h"])
    assert "dtype=f16" in str(program["loss_grad"]) and "T" not in str(program["loss_grad"])
    assert program.run("loss_grad", {"h": np.ones(3, "f2")}).outputs[1].tolist() == [2, 2, 2]


def test_a_library_graph_has_a_generic_gradient():
    module = Module(())
    made = grad(verify(library()[0]), "attention_causal", ["q", "k", "v"], seeded=True)
    text = print_module(Module(made, source=module.source))
    assert text.startswith("graph attention_causal_grad<T: float>(")
    program = opstep.loads(text)
    rng = np.random.default_rng(0)
    heads = {n: rng.standard_normal((1, 2, 3, 4)) for n in ("q", "k", "v", "d_0")}
    exact = program.run(None, heads).outputs
    narrow = program.run(None, {n: a.astype("f4") for n, a in heads.items()}).outputs
    for a, b in zip(exact, narrow, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_a_gradient_that_would_have_to_name_a_type():
    program = opstep.loads("""\
        graph loss<T: float>(x: T[N], w: f32[N]) -> f64[] {
          y = mul(x, w)
          z = cast(y, dtype=f64)
          l = sum(z)
          return l
        }
        """)
    with pytest.raises(OpstepError) as found:
        program.with_grad("loss", ["x"])
    assert "<text>:3:11: error: the gradient of cast is not one for all types" in str(found.value)
    assert "write one in place of T" in str(found.value)


def test_what_may_be_no_float_has_no_gradient_of_its_own():
    text = "graph total<T: number>(x: T[N]) -> T[] {\n  l = max(x)\n  return l\n}\n"
    program = opstep.loads(text)
    with pytest.raises(OpstepError, match="it depends on what T is"):
        program.with_grad("total", ["x"])
    with pytest.raises(InputError, match="only floats have derivatives"):
        opstep.loads("graph f<T: int>(x: T[]) -> T[] {\n  return x\n}\n").with_grad("f", ["x"])
