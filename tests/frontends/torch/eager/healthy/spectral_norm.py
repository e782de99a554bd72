# Healthy: spectral norm in both of its forms
import torch
from torch import nn
from torch.nn.utils import parametrizations

torch.manual_seed(0)
net = nn.Sequential(
    parametrizations.spectral_norm(nn.Linear(4, 6)),
    nn.ReLU(),
    nn.utils.spectral_norm(nn.Linear(6, 1)),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.randn(10, 4)
for step in range(4):
    loss = (net(x)[:, 0] - x.mean(-1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print(torch.linalg.matrix_norm(net[0].weight, 2).item())
