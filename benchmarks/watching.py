"""Training steps of eager PyTorch as `opstep hunt SCRIPT` watches them, beside the same steps
alone, by turns in one process: the ratio of the fastest of many, several times; PyTorch's own
anomaly mode; a timeline and a record of them. Plain beside plain says how far figures can be
trusted.

    python benchmarks/watching.py mlp lenet resnet18 gpt           # on a CPU, one thread
    python benchmarks/watching.py --device cuda lenet resnet50 resnet50-bf16 gpt2 gpt2-bf16
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from opstep.frontends.torch.eager import looking, native
from opstep.frontends.torch.eager.records import Records
from opstep.frontends.torch.eager.session import Session
from opstep.frontends.torch.eager.steps import Recorder, simple_kernels
from opstep.trace.recording import Recording

WAYS = ("plain", "again", "native", "python", "keep", "anomaly", "trace", "workspace")


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """`widths`: in, inner, out; three convolutions where `deep`."""

    def __init__(self, widths: tuple[int, int, int], stride: int, deep: bool):
        super().__init__()
        inside, inner, out = widths
        convs = [(inside, inner, 1, 1), (inner, inner, 3, stride), (inner, out, 1, 1)]
        convs = convs if deep else [(inside, inner, 3, stride), (inner, out, 3, 1)]
        layers: list[nn.Module] = []
        for a, b, size, step in convs:
            conv = nn.Conv2d(a, b, size, step, size // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        same = inside == out and stride == 1
        side = (nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.side = nn.Identity() if same else nn.Sequential(*side)

    def forward(self, x):
        return F.relu(self.body(x) + self.side(x))


def resnet(blocks: tuple[int, ...], deep: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for k, count in enumerate(blocks):
        inner = 64 << k
        out = inner * 4 if deep else inner
        for j in range(count):
            layers.append(Residual((width, inner, out), 2 if k and not j else 1, deep))
            width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def lenet() -> nn.Module:
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    features += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    head = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*features, *head)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def step_of(name: str, device: str) -> tuple[Callable[[], None], int]:
    """A step of training, and how many of them are timed at once."""
    torch.manual_seed(0)
    kind, _, half = name.partition("-")
    labels = lambda n, shape: torch.randint(n, shape, device=device)  # noqa: E731
    inner = {"mlp": 20, "lenet": 4}.get(kind, 1)
    if kind == "mlp":
        net, x, y = mlp(), torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)
    elif kind == "lenet":
        net, x, y = lenet(), torch.randn(64, 1, 28, 28, device=device), labels(10, (64,))
    elif kind.startswith("resnet"):
        deep = kind == "resnet50"
        net = resnet((3, 4, 6, 3) if deep else (2, 2, 2, 2), deep)
        shape = (32, 3, 224, 224) if deep else (8, 3, 64, 64)
        x, y = torch.randn(shape, device=device), labels(1000, shape[:1])
    else:
        small = kind == "gpt"
        net = Transformer(1000, 256, 8, 6) if small else Transformer(50257, 768, 12, 12)
        x = labels(1000, (4, 64) if small else (8, 512))
        y = x.flatten()
    net = net.to(device)
    adam = kind == "mlp" or kind.startswith("gpt")
    optimizer: Any = torch.optim.AdamW(net.parameters()) if adam else None
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        cast = torch.autocast(device, torch.bfloat16) if half else nullcontext()
        with cast:
            out = net(x)
            out = out.flatten(0, 1) if out.dim() == 3 else out
            loss = F.mse_loss(out, y) if kind == "mlp" else F.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()

    return step, inner


def within(way: str, stack: ExitStack) -> None:
    if way in ("native", "python"):
        stack.enter_context(Session(_unexpected, native=way == "native"))
    elif way == "keep":
        recorder = Recorder()
        recorder.session = Session(_unexpected, listeners=[recorder])
        stack.enter_context(simple_kernels())
        stack.enter_context(recorder.session)
        stack.enter_context(recorder.hooked())
    elif way == "anomaly":
        stack.enter_context(torch.autograd.detect_anomaly(True))
    elif way in ("trace", "workspace"):
        file: Any = Path(stack.enter_context(tempfile.TemporaryDirectory())) / way
        recording = Recording(**{way: file})
        stack.callback(recording.close)
        records = Records(recording)
        stack.callback(records.end, None)
        records.begin(stack.enter_context(Session(_unexpected, looks=False, records=records)))


def _unexpected(found: Any) -> None:
    raise AssertionError(found)


def fastest(name: str, device: str, rounds: int, ways: tuple[str, ...]) -> dict[str, float]:
    """The least time of a step in each way, of `rounds` by turns, in seconds."""
    step, inner = step_of(name, device)
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = dict.fromkeys(ways, float("inf"))
    for k in range(rounds + 1):
        for way in ways if k % 2 else ways[::-1]:
            start = 0.0
            with ExitStack() as stack:
                within(way, stack)
                for j in range(inner + 1):  # the first is on its own
                    if j == 1:
                        settle()
                        start = time.perf_counter()
                    step()
                settle()
                took = (time.perf_counter() - start) / inner
            if k:
                best[way] = min(best[way], took)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=["mlp", "lenet", "resnet18", "gpt"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--ratios", type=int, default=10)
    parser.add_argument("--ways", default=",".join(WAYS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    native.build()
    looking.compile_kernels()
    ways = ("plain", *(w for w in given.ways.split(",") if w != "plain"))
    for name in given.names:
        found = [fastest(name, given.device, given.rounds, ways) for _ in range(given.ratios)]
        texts = []
        for way in ways[1:]:
            ratios = sorted(one[way] / one["plain"] for one in found)
            middle = statistics.median(ratios)
            texts.append(f"{way} {middle:.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        plain = statistics.median(one["plain"] for one in found)
        print(f"{name}: plain {plain * 1e3:.2f} ms, {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
