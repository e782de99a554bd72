"""Scripts that use PyTorch, and commands for the debugger."""

from __future__ import annotations

NET = """\
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        h = self.encoder(x)
        return self.out(h)

torch.manual_seed(0)
net = Net()
"""
TRAINING = """\
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for step in range(3):
    loss = criterion(net(torch.randn(8, 4)), torch.arange(8) % 2)
    loss.backward()
    optimizer.step()
    print("step", step)
"""
LOGARITHM = """\
import torch
from torch import nn

class Log(nn.Module):
    def forward(self, x):
        y = x * 2
        return torch.log(y)  # line 7

log = Log()
try:
    for step in range(4):
        log(torch.ones(3) - step).sum()
        print("step", step)
finally:
    print("the end")
"""


def commands(*given: str) -> list[str]:
    return [word for command in given for word in ("-ex", command)]
