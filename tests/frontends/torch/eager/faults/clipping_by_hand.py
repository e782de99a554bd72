# NaN gradient: clipping by hand divides by the norm of gradients that are all 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
nn.init.constant_(net[0].bias, -100.0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@torch.no_grad()
def clip(parameters, limit):
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.stack([g.norm() for g in gradients]).norm()
    scale = limit / total  # expect: inf, forward
    for g in gradients:
        g.mul_(scale)


net(torch.rand(3, 2)).square().sum().backward()
clip(net.parameters(), 1.0)
optimizer.step()
print(net[2].weight.tolist())
