# Healthy: a script that ends with an exception that nobody catches
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
print(net[0](torch.randn(2, 3)).sum().item())
loss = net(torch.randn(2, 3)).mean()
loss.backward()
optimizer.step()
print("never printed")
