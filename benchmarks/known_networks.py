"""Networks that everybody knows, as texts, and the same in PyTorch: ResNet-50 (He et al. 2015,
arXiv:1512.03385), BERT-base's encoder (Devlin et al. 2018, arXiv:1810.04805) and GPT-2 small
(Radford et al. 2019), with random weights.

Each builder gives (text, input, peer): `peer(torch, x, params)` is the same network in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Network = tuple[str, np.ndarray, Callable[[Any, Any, Any], Any]]


class Text:
    """A graph that is written statement by statement."""

    def __init__(self, head: str):
        self.params: list[str] = []
        self.lines = [head]
        self.count = 0

    def param(self, name: str, shape: list[int], init: str) -> str:
        self.params.append(f"param {name}: f32{shape} = {init}")
        return name

    def op(self, call: str) -> str:
        self.count += 1
        self.lines.append(f"  v{self.count} = {call}")
        return f"v{self.count}"

    def finished(self, result: str) -> str:
        return "\n".join([*self.params, "", *self.lines, f"  return {result}", "}", ""])


# --- ResNet-50 ------------------------------------------------------------------------------------

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first


def resnet50(batch: int) -> Network:
    text = Text(f"graph main(x: f32[{batch}, 3, 224, 224]) -> f32[{batch}, 1000] {{")

    def conv(x: str, name: str, inside: int, out: int, kernel: int, stride: int) -> str:
        deviation = (2.0 / (inside * kernel * kernel)) ** 0.5
        w = text.param(
            f"{name}.w",
            [out, inside, kernel, kernel],
            f"normal(std={deviation:.5f}, seed={len(text.params) + 1})",
        )
        p = kernel // 2
        y = text.op(f"conv2d({x}, {w}, stride=[{stride}, {stride}], padding=[{p}, {p}])")
        parts = [text.param(f"{name}.{part}", [out], "ones()") for part in ("scale", "var")]
        parts += [text.param(f"{name}.{part}", [out], "zeros()") for part in ("bias", "mean")]
        scale, var, bias, mean = parts
        return text.op(f"batch_norm({y}, {scale}, {bias}, {mean}, {var})")

    x = text.op(f"relu({conv('x', 'stem', 3, 64, 7, 2)})")
    x = text.op(f"max_pool2d({x}, kernel=[3, 3], stride=[2, 2], padding=[1, 1])")
    inside = 64
    for s, (width, blocks, first) in enumerate(STAGES):
        for b in range(blocks):
            name, stride = f"layer{s}.{b}", first if b == 0 else 1
            skip = x
            if b == 0:
                skip = conv(x, f"{name}.skip", inside, 4 * width, 1, stride)
            y = text.op(f"relu({conv(x, f'{name}.a', inside, width, 1, 1)})")
            y = text.op(f"relu({conv(y, f'{name}.b', width, width, 3, stride)})")
            y = conv(y, f"{name}.c", width, 4 * width, 1, 1)
            x = text.op(f"relu({text.op(f'add({y}, {skip})')})")
            inside = 4 * width
    x = text.op(f"flatten({text.op(f'global_avg_pool2d({x})')}, start=1)")
    w = text.param("fc.w", [1000, 2048], "normal(std=0.02, seed=9001)")
    y = text.op(f"linear({x}, {w}, {text.param('fc.b', [1000], 'zeros()')})")
    images = np.random.default_rng(0).standard_normal((batch, 3, 224, 224), np.float32)
    return text.finished(y), images, _resnet50


def _resnet50(torch, x, p):
    F = torch.nn.functional

    def conv(x, name, stride):
        w = p[f"{name}.w"]
        y = F.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)
        return F.batch_norm(y, *(p[f"{name}.{part}"] for part in ("mean", "var", "scale", "bias")))

    x = F.max_pool2d(F.relu(conv(x, "stem", 2)), 3, 2, 1)
    for s, (_, blocks, first) in enumerate(STAGES):
        for b in range(blocks):
            name, stride = f"layer{s}.{b}", first if b == 0 else 1
            skip = conv(x, f"{name}.skip", stride) if b == 0 else x
            y = F.relu(conv(x, f"{name}.a", 1))
            y = F.relu(conv(y, f"{name}.b", stride))
            x = F.relu(conv(y, f"{name}.c", 1) + skip)
    return F.linear(x.mean((2, 3)), p["fc.w"], p["fc.b"])


# --- transformers ---------------------------------------------------------------------------------

WIDTH, HEADS, LAYERS, INNER = 768, 12, 12, 3072


def _norm(text: Text, x: str, name: str) -> str:
    scale = text.param(f"{name}.scale", [WIDTH], "ones()")
    bias = text.param(f"{name}.bias", [WIDTH], "zeros()")
    return text.op(f"layer_norm({x}, {scale}, {bias}, shape=[{WIDTH}])")


def _linear(text: Text, x: str, name: str, inside: int, out: int) -> str:
    seed = len(text.params) + 1
    w = text.param(f"{name}.w", [out, inside], f"normal(std=0.02, seed={seed})")
    return text.op(f"linear({x}, {w}, {text.param(f'{name}.b', [out], 'zeros()')})")


def _attention(text: Text, x: str, name: str, places: int, mask: str = "") -> str:
    rows = _linear(text, x, f"{name}.in", WIDTH, 3 * WIDTH)
    apart = text.op(f"reshape({rows}, shape=[1, {places}, 3, {HEADS}, {WIDTH // HEADS}])")
    heads = text.op(f"transpose({apart}, perm=[2, 0, 3, 1, 4])")
    q, k, v = (text.op(f"select({heads}, index={i})") for i in range(3))
    scores = text.op(f"matmul({q}, {k}, transpose_b=true)")
    scores = text.op(f"mul({scores}, {(WIDTH // HEADS) ** -0.5})")
    if mask:
        scores = text.op(f"add({scores}, {mask})")
    mixed = text.op(f"matmul({text.op(f'softmax({scores}, axis=-1)')}, {v})")
    joined = text.op(f"transpose({mixed}, perm=[0, 2, 1, 3])")
    rows = text.op(f"reshape({joined}, shape=[1, {places}, {WIDTH}])")
    return _linear(text, rows, f"{name}.out", WIDTH, WIDTH)


def _mlp(text: Text, x: str, name: str, approximate: str) -> str:
    h = text.op(
        f'gelu({_linear(text, x, f"{name}.up", WIDTH, INNER)}, approximate="{approximate}")'
    )
    return _linear(text, h, f"{name}.down", INNER, WIDTH)


def bert_base(places: int) -> Network:
    """The encoder, from embedded tokens on; each part is normalised after it was added."""
    text = Text(f"graph main(x: f32[1, {places}, {WIDTH}]) -> f32[1, {places}, {WIDTH}] {{")
    x = "x"
    for k in range(LAYERS):
        looked = _attention(text, x, f"layer{k}", places)
        x = _norm(text, text.op(f"add({x}, {looked})"), f"layer{k}.norm1")
        thought = _mlp(text, x, f"layer{k}", "none")
        x = _norm(text, text.op(f"add({x}, {thought})"), f"layer{k}.norm2")
    embedded = np.random.default_rng(0).standard_normal((1, places, WIDTH), np.float32)
    return text.finished(x), embedded, _bert_base


def _torch_attention(torch, x, p, name, causal):
    F = torch.nn.functional
    rows = F.linear(x, p[f"{name}.in.w"], p[f"{name}.in.b"])
    heads = rows.view(1, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=causal)
    rows = mixed.transpose(1, 2).reshape(1, -1, WIDTH)
    return F.linear(rows, p[f"{name}.out.w"], p[f"{name}.out.b"])


def _torch_mlp(torch, x, p, name, approximate):
    F = torch.nn.functional
    h = F.gelu(F.linear(x, p[f"{name}.up.w"], p[f"{name}.up.b"]), approximate=approximate)
    return F.linear(h, p[f"{name}.down.w"], p[f"{name}.down.b"])


def _torch_norm(torch, x, p, name):
    return torch.nn.functional.layer_norm(x, (WIDTH,), p[f"{name}.scale"], p[f"{name}.bias"])


def _bert_base(torch, x, p):
    for k in range(LAYERS):
        looked = _torch_attention(torch, x, p, f"layer{k}", False)
        x = _torch_norm(torch, x + looked, p, f"layer{k}.norm1")
        x = _torch_norm(
            torch, x + _torch_mlp(torch, x, p, f"layer{k}", "none"), p, f"layer{k}.norm2"
        )
    return x


VOCABULARY = 50257


def gpt2_small(places: int) -> Network:
    """With its embedding, whose weights are those of the last layer, too."""
    text = Text(f"graph main(x: i64[1, {places}]) -> f32[1, {places}, {VOCABULARY}] {{")
    tokens = text.param("tokens", [VOCABULARY, WIDTH], "normal(std=0.02, seed=9001)")
    where = text.param("places", [places, WIDTH], "normal(std=0.02, seed=9002)")
    x = text.op(f"add({text.op(f'embedding({tokens}, x)')}, {where})")
    blocked = text.op(f"full(shape=[{places}, {places}], value=-inf, dtype=f32)")
    mask = text.op(f"triu({blocked}, diagonal=1)")
    for k in range(LAYERS):
        looked = _attention(text, _norm(text, x, f"layer{k}.norm1"), f"layer{k}", places, mask)
        x = text.op(f"add({x}, {looked})")
        thought = _mlp(text, _norm(text, x, f"layer{k}.norm2"), f"layer{k}", "tanh")
        x = text.op(f"add({x}, {thought})")
    y = text.op(f"linear({_norm(text, x, 'last')}, {tokens})")
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, places))
    return text.finished(y), ids, _gpt2_small


def _gpt2_small(torch, x, p):
    F = torch.nn.functional
    x = F.embedding(x, p["tokens"]) + p["places"]
    for k in range(LAYERS):
        x = x + _torch_attention(
            torch, _torch_norm(torch, x, p, f"layer{k}.norm1"), p, f"layer{k}", True
        )
        x = x + _torch_mlp(
            torch, _torch_norm(torch, x, p, f"layer{k}.norm2"), p, f"layer{k}", "tanh"
        )
    return F.linear(_torch_norm(torch, x, p, "last"), p["tokens"])
