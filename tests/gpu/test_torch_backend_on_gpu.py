"""Models that `torch.compile` gives to opstep, on a GPU: beside eager mode, in order with PyTorch's
own work on its streams.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(8 * 64, 10),
    ).cuda()  # fmt: skip


def trained(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(7)
    for _ in range(5):
        optimiser.zero_grad()
        net(x).sin().mean().backward()
        optimiser.step()
    return [*net.parameters(), *net.buffers()]


@pytest.mark.parametrize("options", [None, {"hunt": True}, {"mode": "debug"}], ids=str)
def test_training_is_that_of_eager_mode(options):
    torch._dynamo.reset()
    net, x = model(), torch.randn(4, 3, 8, 8, device="cuda")
    eager = copy.deepcopy(net)
    found = trained(torch.compile(net, backend="opstep", options=options), x)
    for a, b in zip(found, trained(eager, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_steps_are_in_order_with_what_else_is_on_the_stream():
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x * 2 + 1, backend="opstep")
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        x = torch.zeros(1 << 22, device="cuda")
        for _ in range(20):
            x = fast(x.add_(1)).sub_(1).div_(2)
    stream.synchronize()
    assert torch.equal(x, torch.full_like(x, 20))
