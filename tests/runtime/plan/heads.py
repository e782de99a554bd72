"""Random programs of attention whose heads are parts of other tensors."""

from __future__ import annotations

from random import Random

import numpy as np


def attention_of_heads(seed: int) -> tuple[str, dict[str, np.ndarray]]:
    """A program, and what it is given."""
    r = Random(seed)
    dtype = r.choice(("bf16", "f16", "f32"))
    batch, heads, width = r.randint(1, 3), r.choice((1, 2, 3)), r.choice((8, 16, 24, 12))
    rows = r.choice((1, 5, 17, 70))
    shared = heads if r.random() < 0.7 else 1  # heads of k and v
    lines, inputs = [], {}
    shapes: dict[str, list[int]] = {}
    way = r.choice(("split", "select", "apart", "first", "packed"))
    own = {"q": heads, "k": shared, "v": shared}
    if way == "split":
        sizes = [own[n] * width for n in "qkv"]
        shapes["x"] = [batch, rows, sum(sizes)]
        lines.append(f"a, b, c = split(x, sizes={sizes}, axis=2)")
        lines += [
            f"{n}h = reshape({s}, shape={[batch, rows, own[n], width]})"
            for n, s in zip("qkv", "abc", strict=True)
        ]
        lines += [f"{n} = transpose({n}h, perm=[0, 2, 1, 3])" for n in "qkv"]
    elif way == "select":
        shared = own["k"] = own["v"] = heads
        shapes["x"] = [batch, rows, 3, heads, width]
        lines.append("t = transpose(x, perm=[2, 0, 3, 1, 4])")
        lines += [f"{n} = select(t, index={i}, axis=0)" for i, n in enumerate("qkv")]
    elif way == "apart":
        for n in "qkv":
            shapes[f"{n}x"] = [batch, rows, own[n] * width]
            lines.append(f"{n}h = reshape({n}x, shape={[batch, rows, own[n], width]})")
            lines.append(f"{n} = transpose({n}h, perm=[0, 2, 1, 3])")
    elif way == "packed":  # as PyTorch's multi-head attention has them
        shared = own["k"] = own["v"] = heads
        shapes["x"] = [rows, batch, 3 * heads * width]
        lines.append(f"p = reshape(x, shape={[rows, batch, 3, heads * width]})")
        lines.append("t = transpose(p, perm=[2, 0, 1, 3])")
        for i, n in enumerate("qkv"):
            lines.append(f"{n}s = select(t, index={i})")
            lines.append(f"{n}r = reshape({n}s, shape={[rows, batch * heads, width]})")
            lines.append(f"{n}t = transpose({n}r, perm=[1, 0, 2])")
            lines.append(f"{n} = reshape({n}t, shape={[batch, heads, rows, width]})")
    else:  # rows first
        shared = own["k"] = own["v"] = heads
        for n in "qkv":
            shapes[f"{n}x"] = [rows, batch * heads, width]
            lines.append(f"{n}t = transpose({n}x, perm=[1, 0, 2])")
            lines.append(f"{n} = reshape({n}t, shape={[batch, heads, rows, width]})")
    mask = ""
    if r.random() < 0.3:
        shapes["m"] = [rows, rows]
        mask = ", m"
    causal = f", causal={r.choice(('true', 'false'))}"
    grouped = ", enable_gqa=true" if shared != heads or r.random() < 0.2 else ""
    lines.append(f"y = scaled_dot_product_attention(q, k, v{mask}{causal}{grouped})")
    out = [batch, heads, rows, width]
    last = "y"
    if r.random() < 0.8:
        perm = r.choice(([0, 2, 1, 3], [2, 0, 1, 3], [0, 1, 3, 2]))
        lines.append(f"z = transpose(y, perm={perm})")
        out, last = [out[p] for p in perm], "z"
    lines.append(f"e = add({last}, 1.0)")
    results = [("e", out)]
    if r.random() < 0.15:
        results.append(("q", [batch, heads, rows, width]))
    if r.random() < 0.1:
        results.append(("y", [batch, heads, rows, width]))
    rng = np.random.default_rng(seed)
    from opstep.runtime.ir.types import DTYPES

    for name, shape in shapes.items():
        inputs[name] = rng.standard_normal(shape).astype(DTYPES[dtype].numpy)
    head = ", ".join(f"{n}: {dtype}{s}" for n, s in shapes.items())
    gives = ", ".join(f"{dtype}{s}" for _, s in results)
    body = "\n".join(f"  {line}" for line in lines)
    names = ", ".join(n for n, _ in results)
    return f"graph main({head}) -> {gives} {{\n{body}\n  return {names}\n}}\n", inputs
