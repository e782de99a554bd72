# NaN gradient: gradients of micro-batches are accumulated, only the third has equal targets
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 4)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def correlation(a, b):
    a, b = a - a.mean(), b - b.mean()
    covariance = (a * b).mean()
    norm = (a.square().mean() * b.square().mean()).sqrt()  # expect: nan, backward
    return covariance / norm.clamp(min=1e-4)


batches = [torch.randn(3, 2) for _ in range(4)]
for k, x in enumerate(batches):
    target = torch.ones(12) if k == 2 else torch.randn(12)
    loss = 1 - correlation(net(x).flatten(), target)
    (loss / 4).backward()
    print(k, net.bias.grad.isnan().any().item())
optimizer.step()
