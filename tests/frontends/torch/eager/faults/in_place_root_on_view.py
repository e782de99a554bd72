# Infinite gradient: an in-place root of one column of a larger tensor
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 3, bias=False)
nn.init.zeros_(net.weight)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
y = net(torch.randn(4, 3)) + torch.tensor([0.0, 1.0, 4.0])
y[:, 2].mul_(0.5)
y[:, 1].add_(2)
y[:, 0].sqrt_()  # expect: inf, backward
loss = y.sum()
loss.backward()
optimizer.step()
print(loss.item(), net.weight.tolist())
