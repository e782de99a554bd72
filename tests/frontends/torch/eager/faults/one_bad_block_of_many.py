# NaN gradient: blocks with a learned temperature, one of them starts at 0
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.heat = nn.Parameter(torch.tensor(start))
        self.mix = nn.Linear(3, 3)

    def forward(self, x):
        gate = self.heat.sqrt()  # expect: inf, backward
        return x + gate * self.mix(x).tanh()


torch.manual_seed(0)
blocks = nn.ModuleList([Block(1.0), Block(0.5), Block(0.0), Block(2.0)])
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
x = torch.randn(2, 3)
for block in blocks:
    x = block(x)
x.sum().backward()
optimizer.step()
print([b.heat.item() for b in blocks])
