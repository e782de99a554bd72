# Healthy: own parametrizations, weight norm and an orthogonal weight
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize


class Positive(nn.Module):
    def forward(self, x):
        return nn.functional.softplus(x)

    def right_inverse(self, y):
        return torch.where(y > 20, y, torch.log(torch.expm1(y.clamp(min=1e-3))))


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
parametrize.register_parametrization(net[2], "weight", Positive())
parametrizations.orthogonal(net[0])
net[2].weight = torch.tensor([[0.0, 1.0, 100.0]])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    loss = (net(torch.randn(6, 3)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
parametrize.remove_parametrizations(net[2], "weight")
print((net[2].weight > 0).all().item(), torch.linalg.det(net[0].weight).abs().round().item())
