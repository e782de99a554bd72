# Healthy: torch.jit.trace and torch.jit.script
import warnings
import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)


class Mask(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        for k in range(n):
            x = x.masked_fill(x < -float(k), float("-inf"))
        return x.softmax(-1)


scripted = torch.jit.script(Mask())
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
traced = torch.jit.trace(net, torch.randn(2, 3))
optimizer = torch.optim.SGD(traced.parameters(), lr=0.1)
for _ in range(3):
    loss = scripted(traced(torch.randn(2, 3)).abs(), 2).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
