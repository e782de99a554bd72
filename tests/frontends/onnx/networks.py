"""Networks as people write and export them, with random weights: hand-written ones, and those of
torchvision and transformers (`zoo`).
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
import zoo
from torch import nn
from torch.nn import functional as F


def convolved(size: int, out: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(size, out, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.SiLU())


class Detector(nn.Module):
    """Heads at two scales, whose boxes are decoded, and the ten best."""

    def __init__(self):
        super().__init__()
        self.fine = nn.Sequential(convolved(3, 16, 2), convolved(16, 32, 2), convolved(32, 32))
        self.coarse = nn.Sequential(convolved(32, 64, 2), convolved(64, 64))
        self.lateral, self.fused = nn.Conv2d(64, 32, 1), convolved(64, 32)
        self.heads = nn.ModuleList([nn.Conv2d(32, 27, 1), nn.Conv2d(64, 27, 1)])
        self.register_buffer("anchors", torch.rand(2, 3, 2) * 4)

    def decoded(self, head, anchors, stride):
        n, _, h, w = head.shape
        head = head.view(n, 3, 9, h, w).permute(0, 1, 3, 4, 2)
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        centre = (head[..., :2].sigmoid() * 2 - 0.5 + torch.stack((x, y), -1)) * stride
        size = (head[..., 2:4].sigmoid() * 2) ** 2 * anchors.view(1, 3, 1, 1, 2)
        return torch.cat((centre, size, head[..., 4:].sigmoid()), -1).flatten(1, 3)

    def forward(self, x):
        fine = self.fine(x)
        coarse = self.coarse(fine)
        fine = self.fused(
            torch.cat((fine, F.interpolate(self.lateral(coarse), scale_factor=2.0)), 1)
        )
        heads = [
            self.decoded(head(m), a, s)
            for head, m, a, s in zip(self.heads, (fine, coarse), self.anchors, (4, 8), strict=True)
        ]
        y = torch.cat(heads, 1)
        best, label = (y[..., 4:5] * y[..., 5:]).max(-1)
        scores, index = best.topk(10, dim=1)
        boxes = torch.gather(y[..., :4], 1, index.unsqueeze(-1).expand(-1, -1, 4))
        return boxes, scores, torch.gather(label, 1, index)


class Step(nn.Module):
    """A residual block that is told the time."""

    def __init__(self, size: int, out: int):
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(4, size), nn.Conv2d(size, out, 3, padding=1)
        self.norm_2, self.conv_2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(32, out)
        self.skip = nn.Conv2d(size, out, 1) if size != out else nn.Identity()

    def forward(self, x, time):
        h = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(h)))


class Looking(nn.Module):
    """A transformer's block over an image, which looks at itself and at a text."""

    def __init__(self, size: int, text: int = 16):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.before = nn.GroupNorm(4, size)
        self.q = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.kv = nn.ModuleList([nn.Linear(size, 2 * size), nn.Linear(text, 2 * size)])
        self.out = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.up, self.down = nn.Linear(size, 8 * size), nn.Linear(4 * size, size)

    def seen(self, k, x, text):
        n, t, d = x.shape
        parts = (self.q[k](x), *self.kv[k](text).chunk(2, -1))
        q, key, v = (p.view(n, -1, 2, d // 2).transpose(1, 2) for p in parts)
        found = F.scaled_dot_product_attention(q, key, v)
        return self.out[k](found.transpose(1, 2).reshape(n, t, d))

    def forward(self, x, text):
        n, d, h, w = x.shape
        y = self.before(x).flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self.seen(0, z, z)
        y = y + self.seen(1, self.norms[1](y), text)
        a, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(a * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(n, d, h, w)


class Diffusion(nn.Module):
    """A U-Net as of Stable Diffusion."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first, self.last = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.steps = nn.ModuleList(
            [Step(16, 16), Step(16, 32), Step(32, 32), Step(64, 32), Step(48, 16)]
        )
        self.looks = nn.ModuleList([Looking(16), Looking(32), Looking(16)])
        self.down, self.up = nn.Conv2d(16, 16, 3, 2, 1), nn.Conv2d(32, 32, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x, time, text):
        angles = time[:, None].float() * torch.exp(-torch.arange(8) / 8 * 9.21)
        time = self.time(torch.cat((angles.sin(), angles.cos()), -1))
        fine = self.looks[0](self.steps[0](self.first(x), time), text)
        coarse = self.looks[1](self.steps[1](self.down(fine), time), text)
        x = self.steps[3](torch.cat((self.steps[2](coarse, time), coarse), 1), time)
        x = self.up(F.interpolate(x, scale_factor=2.0))
        x = self.looks[2](self.steps[4](torch.cat((x, fine), 1), time), text)
        return self.last(F.silu(self.norm(x)))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.rnn = nn.GRU(8, 16, 2, bidirectional=True), nn.RNN(32, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        return F.log_softmax(self.out(self.rnn(self.gru(x)[0])[0]), -1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(50, 8), nn.Linear(32, 4)
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        y, (h, c) = self.lstm(self.words(x))
        return self.out(y.max(1)[0]), h, c


class WithPast(nn.Module):
    """GPT-2 with keys and values of what came before."""

    def __init__(self):
        super().__init__()
        import transformers

        config = transformers.GPT2Config(
            vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64,
            attn_implementation="eager",
        )  # fmt: skip
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, ids, *past):
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        for k in range(2):
            cache.update(*past[2 * k : 2 * k + 2], k)
        found = self.model(ids, past_key_values=cache, use_cache=True)
        return found.logits, *(t for layer in cache.layers for t in (layer.keys, layer.values))


HAND_WRITTEN: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple]]] = {
    "detector": (Detector, lambda: (torch.randn(2, 3, 64, 64),)),
    "diffusion": (
        Diffusion,
        lambda: (torch.randn(2, 4, 16, 16), torch.tensor([3, 700]), torch.randn(2, 5, 16)),
    ),
    "gated": (Gated, lambda: (torch.randn(5, 2, 8),)),
    "tagger": (Tagger, lambda: (torch.randint(0, 50, (2, 6)),)),
}
PAST = "gpt2_past"


@cache
def exported(name: str, dynamo: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A network as one of PyTorch's two exporters writes it, and inputs."""
    torch.manual_seed(0)
    if name in HAND_WRITTEN:
        make, example = HAND_WRITTEN[name]
        network, args = zoo.settled(make().eval()), example()
    elif name == PAST:
        network = WithPast().eval()
        args = (torch.randint(0, 99, (2, 3)), *(torch.randn(2, 4, 5, 8) for _ in range(4)))
    else:
        network, args = zoo.model_of(zoo.CASES[name])
    names, buffer = [f"in{k}" for k in range(len(args))], io.BytesIO()
    how: dict[str, Any] = {"opset_version": 18 if dynamo else 17, "dynamo": dynamo}
    how |= {"verbose": False} if dynamo else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(network, args, buffer, input_names=names, **how)
        finally:
            logging.disable(logging.NOTSET)
    model = onnx.load_from_string(buffer.getvalue())
    return model, {n: a.numpy() for n, a in zip(names, args, strict=True)}
