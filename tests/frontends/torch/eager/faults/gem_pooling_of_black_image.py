# NaN gradient: generalised mean pooling of an image that is black
import torch
from torch import nn


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = p

    def forward(self, x):
        cubes = x.clamp(min=0).pow(self.p)
        return cubes.mean((-2, -1)).pow(1 / self.p)  # expect: inf, backward


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), GeM(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.zeros(2, 1, 6, 6)).square().sum().backward()
optimizer.step()
print(net[0].weight.isnan().any().item())
