"""Models that PyTorch exported, with random weights, beside ONNX Runtime; and operators of its own
domain.
"""

from __future__ import annotations

import io
import re
import warnings

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from opstep.runtime.ir.printer import print_module

torch = pytest.importorskip("torch")
import onnx  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

MICROSOFT = [h.make_opsetid("com.microsoft", 1)]


class Layer(nn.Module):
    def __init__(self, size: int = 32, heads: int = 4):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.heads = heads

    def forward(self, x):
        n, t, d = x.shape
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        q, k, v = (p.reshape(n, t, self.heads, -1).transpose(1, 2) for p in parts)
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) * 0.35).masked_fill(~mask, -1e4)
        seen = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, d)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(32, 50)

    def forward(self, x):
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


class Residual(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.first = nn.Conv2d(size, size, 3, padding=1, groups=4)
        self.norm = nn.BatchNorm2d(size)
        self.second = nn.Conv2d(size, size, 1)

    def forward(self, x):
        return F.hardswish(x + self.second(F.relu(self.norm(self.first(x)))))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, 2, 3)
        self.layers = nn.Sequential(*(Residual(16) for _ in range(3)))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1, ceil_mode=True)
        return self.head(self.layers(x).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 8, 4, 2, 1)
        self.out = nn.Conv2d(19, 3, 1)

    def forward(self, x):
        h = F.silu(self.norm(self.down(x)))
        smooth = F.interpolate(h, scale_factor=2.0, mode="bilinear")
        return self.out(torch.cat([self.up(h), smooth, x], 1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 8, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0]


CASES = {
    "text": (Text, lambda: torch.randint(0, 50, (2, 7)), {0: "batch", 1: "time"}),
    "image": (Image, lambda: torch.randn(2, 3, 32, 32), {0: "batch"}),
    "unet": (UNet, lambda: torch.randn(1, 3, 32, 32), {0: "batch"}),
    "recurrent": (Recurrent, lambda: torch.randn(2, 5, 8), {0: "batch", 1: "time"}),
}


def exported(kind: str, dynamo: bool):
    torch.manual_seed(0)
    make, example, axes = CASES[kind]
    x, buffer = example(), io.BytesIO()
    if dynamo and kind == "recurrent":
        axes = {0: "batch"}  # the exporter writes the number of turns into the model
    sizes = {k: torch.export.Dim(n, min=1, max=60) for k, n in axes.items()}
    shapes = {"dynamic_shapes": (sizes,)} if dynamo else {"dynamic_axes": {"x": axes}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            make().eval(), (x,), buffer, input_names=["x"], output_names=["y"], dynamo=dynamo,
            opset_version=18 if dynamo else 17, **shapes,
        )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue()), {"x": x.numpy()}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("dynamo", [False, True], ids=["traced", "exported"])
def test_models_of_pytorch(agrees, kind, dynamo):
    model, inputs = exported(kind, dynamo)
    program = agrees(model, inputs)
    assert program.graph("main").inputs[0].type.shape[0] != inputs["x"].shape[0]  # a symbol
    if dynamo:  # it leaves lines and modules in the file
        assert re.search(r'at "\S*test_onnx_models.py":\d+.* in "', print_module(program.module))


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


OWN = {
    "FusedMatMul": ({"transB": 1, "alpha": 0.5}, {"y": floats(6, 8)}, [3, 6]),
    "BiasGelu": ({}, {"bias": floats(8)}, [3, 8]),
    "FastGelu": ({}, {"bias": floats(8)}, [3, 8]),
    "QuickGelu": ({"alpha": 1.5}, {}, [3, 8]),
    "FusedGemm": ({"activation": "Relu"}, {"y": floats(8, 6), "c": floats(6)}, [3, 6]),
}


@pytest.mark.parametrize("op", OWN)
def test_operators_of_onnx_runtime(model, agrees, op):
    attrs, weights, shape = OWN[op]
    nodes = [h.make_node(op, ["x", *weights], ["r"], domain="com.microsoft", **attrs)]
    outputs = {"r": (T.FLOAT, shape)}
    net = model(nodes, {"x": (T.FLOAT, [3, 8])}, outputs, weights, opsets=MICROSOFT)
    agrees(net, {"x": floats(3, 8)})


def test_attention_of_onnx_runtime(model, agrees):
    weights = {
        "w": floats(16, 48) / 4, "b": floats(48) / 4, "scale": floats(16), "shift": floats(16),
    }  # fmt: skip
    nodes = [
        h.make_node("Attention", ["x", "w", "b"], ["a"], domain="com.microsoft", num_heads=4),
        h.make_node(
            "SkipLayerNormalization", ["a", "x", "scale", "shift"], ["y", "", "", "total"],
            domain="com.microsoft", epsilon=1e-5,
        ),
    ]  # fmt: skip
    shape = [2, 5, 16]
    outputs = {"y": (T.FLOAT, shape), "total": (T.FLOAT, shape)}
    net = model(nodes, {"x": (T.FLOAT, shape)}, outputs, weights, opsets=MICROSOFT)
    agrees(net, {"x": floats(*shape)})


def test_turned_pairs_of_onnx_runtime(model, agrees):
    angles = np.outer(np.arange(10), [1, 0.3, 0.1, 0.03])
    weights = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    weights["places"] = np.array([2])
    names = ["x", "places", "cos", "sin"]
    nodes = [h.make_node("RotaryEmbedding", names, ["y"], domain="com.microsoft")]
    shape = [2, 5, 16]
    net = model(nodes, {"x": (T.FLOAT, shape)}, {"y": (T.FLOAT, shape)}, weights, opsets=MICROSOFT)
    agrees(net, {"x": floats(*shape)})
