# NaN gradient: a recurrence by hand, whose gate closes at its fourth step
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, 0.25]))

    def forward(self, xs):
        h = torch.ones(2)
        for x in xs:
            gate = x * self.w
            h = h * torch.pow(gate, 0.75) + 0.1  # expect: inf, backward
        return h


torch.manual_seed(0)
net = Cell()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
xs = torch.tensor([[1.0, 2.0], [0.5, 1.0], [2.0, 2.0], [0.0, 1.0], [1.0, 1.0]])
net(xs).sum().backward()
optimizer.step()
print(net.w.tolist())
