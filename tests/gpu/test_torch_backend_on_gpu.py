"""Models that `torch.compile` gives to opstep, on a GPU: beside eager mode, in order with PyTorch's
own work on its streams.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from opstep.frontends.scripts.watching import NumericsWarning
from opstep.frontends.torch.outstanding import findings, outstanding


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


# --- hunts, while the GPU is behind ---


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.log(self.norm(x) * 0 + self.scale * x)


GOOD, BAD = [[1.0] * 4, [2.0] * 4], [[1.0] * 4, [2.0, 2.0, -2.0, 2.0]]


def tensor(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, device="cuda")


def keep_busy() -> None:
    """The stream. Copies from the host wait for it: inputs have to be there."""
    torch.cuda._sleep(1_000_000_000)  # cycles: about half a second


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    findings.clear()
    net = Logarithm().cuda()
    yield net, torch.compile(net, backend="opstep", options={"hunt": True})
    findings.clear()


def test_a_nan_is_told_when_params_are_about_to_change(compiled):
    net, fast = compiled
    optimiser = torch.optim.SGD(net.parameters(), lr=0.125)
    good, bad = tensor(GOOD), tensor(BAD)

    def backward(x):
        optimiser.zero_grad()
        fast(x).sum().backward()

    for _ in range(2):
        backward(good)
        optimiser.step()
    scale = net.scale.detach().tolist()
    mean = net.norm.running_mean.tolist()
    keep_busy()
    backward(bad)
    assert [c.verdict.done() for c in outstanding.calls] == [False, False]
    assert findings.told == []
    with pytest.warns(NumericsWarning, match="log of a negative number"):
        optimiser.step()
    (hunt,) = findings
    assert (hunt.graph, hunt.step) == ("forward", 2)
    assert hunt.inputs["x"].tolist() == BAD
    assert hunt.inputs["scale"].tolist() == scale
    assert [v.tolist() for k, v in hunt.inputs.items() if k.endswith("running_mean")] == [mean]


@torch.no_grad()
def test_a_nan_is_told_by_a_later_call(compiled):
    net, fast = compiled
    net.eval()
    good, bad = tensor(GOOD), tensor(BAD)
    fast(good)
    keep_busy()
    for x in (bad, good):
        fast(x)
    assert findings.told == []
    torch.cuda.synchronize()
    with pytest.warns(NumericsWarning, match="log of a negative number"):
        fast(good)
    assert [h.step for h in findings] == [1]


@torch.no_grad()
def test_what_was_overwritten_is_not_replayed(compiled):
    net, fast = compiled
    net.eval()
    x, bad = tensor(GOOD), tensor(BAD)
    fast(x)
    keep_busy()
    fast(x.copy_(bad))
    x.fill_(1)
    assert findings.told == []
    with pytest.warns(NumericsWarning, match="changed in place"):
        (hunt,) = findings
    assert hunt.overwritten
    assert (hunt.step, hunt.findings) == (1, [])


def test_no_call_of_a_training_is_waited_for(compiled):
    net, fast = compiled
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    x = tensor(GOOD)
    for k in range(4):
        optimiser.zero_grad()
        if k > 1:
            keep_busy()  # a host that waits for anything waits for this
        fast(x).sum().backward()
        assert k < 2 or not torch.cuda.current_stream().query()
        optimiser.step()
    assert findings == []
    assert not outstanding.calls
