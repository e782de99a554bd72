# NaN gradient: hyperbolic distance of equal points is acosh(1)
import torch
from torch import nn


class Poincare(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.points = nn.Parameter(torch.zeros(n, 2))

    def distance(self, i, j):
        a, b = self.points[i], self.points[j]
        gap = (a - b).square().sum(-1)
        room = (1 - a.square().sum(-1)) * (1 - b.square().sum(-1))
        return torch.acosh(1 + 2 * gap / room)  # expect: inf, backward


torch.manual_seed(0)
m = Poincare(4)
optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
loss = m.distance(torch.tensor([0, 1]), torch.tensor([2, 3])).sum()
loss.backward()
optimizer.step()
print(loss.item(), m.points.tolist())
