"""Random runs of training of PyTorch's modules that go bad at a random step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Two layers; the slope of the root at 0 is infinite."""

    def __init__(self, activation: nn.Module, root: bool):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)
        self.activation, self.root = activation, root

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.activation(self.first(x)))
        return (y * y).sqrt() if self.root else y


def train(rng: np.random.Generator, recording: Any, xs: list[np.ndarray]) -> None:
    """`xs`: gets the inputs of the steps."""
    torch.manual_seed(int(rng.integers(1000)))
    activation = [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.Sigmoid()][rng.integers(4)]
    kind = str(rng.choice(["input", "param", "gradient", "root"]))
    net = Net(activation, kind == "root")
    optimizer = [torch.optim.SGD, torch.optim.Adam][rng.integers(2)](net.parameters(), lr=0.01)
    fast = torch.compile(net, backend="opstep", options={"recording": recording})
    steps = int(rng.integers(2, 5))
    bad_at, bad = int(rng.integers(steps)), float(rng.choice([np.nan, np.inf]))
    for step in range(steps):
        x, weight = torch.randn(3, 4), torch.ones(3, 2)
        if step == bad_at:
            if kind == "input":
                x[0, 1] = bad
            elif kind == "param":
                with torch.no_grad():
                    net.first.weight[1, 2] = bad
            elif kind == "gradient":
                weight[1, 1] = bad
            else:
                with torch.no_grad():
                    net.last.weight.zero_()
                    net.last.bias.zero_()
        xs.append(x.numpy().copy())
        loss = (fast(x) * weight).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
