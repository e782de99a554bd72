"""Gradients of gradients: products with the Hessian, against differences of gradients in f64."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.runtime.ir.printer import print_module

BLOCK = """
param words: f64[11, 8] = normal(std=0.5, seed=1)
param qkv: f64[3, 2, 4, 8] = normal(std=0.4, seed=2)
param out: f64[8, 2, 4] = normal(std=0.4, seed=3)
param up: f64[16, 8] = normal(std=0.4, seed=4)
param down: f64[8, 16] = normal(std=0.4, seed=5)
param s1: f64[8] = ones()
param b1: f64[8] = zeros()
param s2: f64[8] = ones()

graph loss(tokens: i64[B, L], label: i64[B, L]) -> f64[] {
  x = embedding(words, tokens, padding_index=0)
  a = layer_norm(x, s1, b1, shape=[8])
  h = einsum(a, qkv, equation="blm,chdm->cbhld")
  q, k, v = split(h, sizes=[1, 1, 1], axis=0)
  scores = einsum(q, k, equation="cbhld,cbhsd->cbhls")
  weights = softmax(scores, axis=-1)
  heads = einsum(weights, v, equation="cbhls,cbhsd->cbhld")
  joined = einsum(heads, out, equation="cbhld,mhd->blm")
  r = add(x, joined)
  n = rms_norm(r, s2, shape=[8])
  wide = linear(n, up)
  bent = gelu(wide)
  narrow = linear(bent, down)
  y = add(r, narrow)
  logits = linear(y, words)
  l = softmax_cross_entropy(logits, label, axis=2, ignore_index=-1)
  return l
}
"""


def product_with_hessian(text: str, wrt: list[str], inputs: dict, step: float = 1e-5) -> None:
    """H*v as the gradient of <gradient, v>, and as a difference of gradients."""
    first = opstep.loads(text).with_grad("loss", wrt)
    graph = first.graphs["loss_grad"]
    taken = [b.name.text for b in graph.inputs]
    types = graph.results[-len(wrt) :]
    header = ", ".join(
        [*(f"{b.name.text}: {b.type}" for b in graph.inputs)]
        + [f"v{k}: {t}" for k, t in enumerate(types)]
    )
    lines = [f"  l, {', '.join(f'd{k}' for k in range(len(wrt)))} = loss_grad({', '.join(taken)})"]
    for k in range(len(wrt)):
        lines += [f"  p{k} = mul(d{k}, v{k})", f"  e{k} = sum(p{k})"]
        lines += [f"  t{k} = add(e{k}, {f't{k - 1}' if k else '0.0'})"]
    slope = f"graph slope({header}) -> f64[] {{\n" + "\n".join(lines) + f"\n  return t{k}\n}}\n"
    second = opstep.loads(print_module(first.module) + slope).with_grad("slope", wrt)
    rng = np.random.default_rng(7)
    now = {n: np.array(first.params[n] if n in first.params else inputs[n]) for n in wrt}
    v = {n: rng.standard_normal(a.shape) for n, a in now.items()}
    directions = {f"v{k}": v[n] for k, n in enumerate(wrt)}
    found = second.run("slope_grad", inputs | directions).outputs[-len(wrt) :]

    def gradient(sign: float) -> list[np.ndarray]:
        moved = {n: a + sign * step * v[n] for n, a in now.items()}
        first.params.update({n: a for n, a in moved.items() if n in first.params})
        given = inputs | {n: a for n, a in moved.items() if n in inputs}
        return first.run("loss_grad", given).outputs[-len(wrt) :]

    for name, product, up, down in zip(wrt, found, gradient(1), gradient(-1), strict=True):
        expected = (up - down) / (2 * step)
        scale = np.abs(expected).max() + 1e-3
        np.testing.assert_allclose(product, expected, atol=2e-7 * scale, rtol=2e-6, err_msg=name)
        assert np.abs(product).max() > 0, name


def test_a_transformer_block():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 11, (2, 5))
    label[0, 0] = -1
    tokens = rng.integers(0, 11, (2, 5))
    params = ["words", "qkv", "out", "up", "down", "s1", "b1", "s2"]
    product_with_hessian(BLOCK, params, {"tokens": tokens, "label": label})


def loss_of(declared: str, statements: str) -> str:
    """A graph that ends in the mean square of y."""
    lines = [*statements.split("; "), "squares = square(y)", "l = mean(squares)", "return l"]
    body = "".join(f"  {line}\n" for line in lines)
    return f"graph loss({declared}) -> f64[] {{\n{body}}}\n"


X = np.random.default_rng(1).standard_normal((3, 4, 5))
LABEL = np.array([[0, 3, -100, 1, 2], [1, 1, 0, 2, 3], [3, 2, 1, 0, -100]])
ONE = "x: f64[3, 4, 5]"
HEADS = "q: f64[2, 3, 5], k: f64[2, 4, 5], v: f64[2, 4, 3]"
SHARED = "q: f64[4, 3, 5], k: f64[2, 4, 5], v: f64[2, 4, 3]"
PLACED = f"{ONE}, j: i64[3, 4, 5], s: f64[3, 4, 5]"


@pytest.mark.parametrize(
    "declared, statements",
    [
        (ONE, "y = softmax(x, axis=1)"),
        (ONE, "y = log_softmax(x, axis=0)"),
        (f"{ONE}, label: i64[3, 5]", "y = softmax_cross_entropy(x, label)"),
        (f"{ONE}, label: i64[3, 5]", 'y = softmax_cross_entropy(x, label, reduction="none")'),
        (f"{ONE}, label: i64[3, 5]", "p = log_softmax(x, axis=1); y = nll_loss(p, label)"),
        (f"{ONE}, w: f64[4, 5]", "y = layer_norm(x, w, shape=[4, 5])"),
        (f"{ONE}, w: f64[5]", "y = rms_norm(x, w, shape=[5])"),
        (f"{ONE}, w: f64[4]", "y = group_norm(x, w, groups=2)"),
        (f"{ONE}, w: f64[4]", "y, m, v = batch_norm_train(x, w, w)"),
        (f"{ONE}, w: f64[4]", "z, m, v = batch_norm_train(x, w, w); p = mul(m, v); y = mul(p, w)"),
        (f"{ONE}, w: f64[4]", "v = square(w); y = batch_norm(x, w, w, w, v)"),
        (ONE, "y, i = sort(x, axis=1)"),
        (ONE, "y, i = top_k(x, k=2)"),
        (ONE, "y = cumprod(x, axis=1)"),
        (ONE, "y = cumprod(x, axis=0, exclusive=true, reverse=true)"),
        (f"{ONE}, w: f64[5]", "y = rem(x, w)"),
        (f"{ONE}, i: i64[2]", "y = gather(x, i, axis=1)"),
        (f"{ONE}, i: i64[2]", "y = embedding(x, i, padding_index=-1)"),
        (f"{ONE}, j: i64[3, 4, 5]", "y = gather_elements(x, j, axis=2)"),
        (PLACED, 'y = scatter_reduce(x, j, s, axis=2, reduction="mul")'),
        (PLACED, 'y = scatter_reduce(x, j, s, axis=2, reduction="max")'),
        (HEADS, "y = scaled_dot_product_attention(q, k, v, causal=true)"),
        (f"{HEADS}, w: f64[3, 4]", "y = scaled_dot_product_attention(q, k, v, w)"),
        (SHARED, "y = scaled_dot_product_attention(q, k, v, scale=0.7, enable_gqa=true)"),
    ],
)  # fmt: skip
def test_ops(declared, statements):
    rng = np.random.default_rng(2)
    known = {
        "x": X, "w": rng.uniform(0.5, 1.5, 64), "i": np.array([2, -3]), "label": LABEL,
        "j": rng.integers(0, 5, X.shape), "s": rng.standard_normal(X.shape),
        **{name: rng.standard_normal(64) for name in "qkv"},
    }  # fmt: skip
    text = loss_of(declared, statements)
    inputs = {}
    for binding in opstep.loads(text).graphs["loss"].inputs:
        name, t = binding.name.text, binding.type
        inputs[name] = known[name].ravel()[: t.size].reshape(t.shape)
    wrt = [n for n, a in inputs.items() if a.dtype == np.float64]
    product_with_hessian(text, wrt, inputs)


def along_x(program: opstep.Program, graph: str, name: str) -> opstep.Program:
    """With graphs `name`, what `graph` returns last times x, summed, and its gradient by x."""
    results = [f"r{k}" for k in range(len(program.graphs[graph].results))]
    text = f"graph {name}(x: f64[4]) -> f64[] {{\n  {', '.join(results)} = {graph}(x)\n"
    text += f"  p = mul({results[-1]}, x)\n  s = sum(p)\n  return s\n}}\n"
    return opstep.loads(print_module(program.module) + text).with_grad(name, ["x"])


def test_gradients_of_the_third_order():
    text = loss_of("x: f64[4]", "a = softmax(x); y = layer_norm(a, shape=[4])")
    program = opstep.loads(text).with_grad("loss", ["x"])
    program = along_x(along_x(program, "loss_grad", "second"), "second_grad", "third")
    x = np.array([0.3, -1.0, 0.7, 2.0])
    gradient = program.run("third_grad", {"x": x}).outputs[-1]
    for direction in np.eye(4):
        up, down = (
            program.run("third", {"x": x + step * direction}).outputs[0] for step in (1e-5, -1e-5)
        )
        assert np.isclose(gradient @ direction, (up - down) / 2e-5, rtol=1e-6, atol=1e-9)
