# NaN gradient: a generator yields one loss for each layer, the last has a ratio of zeros
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 3)


def terms(h):
    yield h.square().mean()
    yield (h - 1).abs().mean()
    top = h.relu().sum(-1).detach()
    yield torch.where(top > 0, h[:, 0] / top, 0.0).sum()  # expect: nan, backward


nn.init.constant_(net.bias, -30.0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
total = torch.zeros(())
for k, term in enumerate(terms(net(torch.randn(2, 3)))):
    total = total + term / (k + 1)
total.backward()
optimizer.step()
print(total.item(), net.bias.tolist())
