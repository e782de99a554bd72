"""Hunts of scripts that scale their loss: skipped steps are counted, errors are found."""

from __future__ import annotations

import pytest
import torch

from opstep.cli.main import main
from opstep.frontends.scripts import watching

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
{}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16{})
for step in range({}):
    x = torch.randn(16, 8) * 4
    with torch.autocast("cpu", torch.float16):
        loss = net(x)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale())
"""
HEALTHY = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return nn.functional.mse_loss(self.layer(x), x[:, :1] * 9)
"""
SLOPE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        y = self.layer(x).float()
        return y.mean() + (y - y).square().sum(1).sqrt().mean()
"""


@pytest.fixture
def hunted(tmp_path, monkeypatch, capsys):
    def hunt(*parts) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "train.py").write_text(SCRIPT.format(*parts))
        torch._dynamo.reset()
        watching.told.clear()
        code = main(["hunt", "--compiled", "train.py"])
        found = capsys.readouterr()
        return code, found.out + found.err

    yield hunt
    watching.told.clear()
    torch._dynamo.reset()


def test_skipped_steps_are_counted_and_no_alarm(hunted):
    code, told = hunted(HEALTHY, "", 12)
    assert code == 0, told
    assert "no NaN or infinity came out; GradScaler skipped 9 steps\n" in told


@pytest.mark.parametrize("steps", [3, 20])
def test_what_no_scale_helps_against_is_found(hunted, steps):
    """At the end of the script, or as soon as the scale is small."""
    code, told = hunted(SLOPE, "", steps)
    assert code == 5
    assert "backward: step 0 is bad" in told
    assert "The slope of sqrt at 0 is infinite" in told
    assert told.startswith("scale" if steps == 3 else "backward: step 0 is bad")


def test_a_scaler_that_is_off_hides_nothing(hunted):
    code, told = hunted(SLOPE, ", enabled=False", 3)
    assert code == 5
    assert told.startswith("train.py:24: scaler.scale(loss).backward()\nbackward: step 0 is bad")


def test_what_is_bad_before_the_loss_is_scaled_is_told_at_once(hunted):
    code, told = hunted(HEALTHY.replace("x[:, :1] * 9", "x[:, :1].log()"), "", 3)
    assert code == 5
    assert "forward: step 0 is bad" in told
