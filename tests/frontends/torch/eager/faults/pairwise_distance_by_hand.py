# NaN gradient: pairwise distances by hand, the diagonal is the square root of 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(6, 4)
for step in range(2):
    z = net(x)
    difference = z[:, None] - z[None, :]
    squared = difference.pow(2).sum(-1)
    distance = squared.sqrt()  # expect: inf, backward
    loss = (distance - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
