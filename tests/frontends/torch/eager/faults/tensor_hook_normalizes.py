# NaN gradient: a hook divides the gradient by its length, which is 0
import torch
from torch import nn


def unit(gradient):
    return gradient / gradient.norm()  # expect: nan, backward


torch.manual_seed(0)
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
h = net(torch.randn(4, 3))
h.register_hook(unit)
loss = torch.relu(h - 100).sum()
loss.backward()
optimizer.step()
print(loss.item(), net.weight.tolist())
