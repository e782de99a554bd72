# NaN result: weight norm of a row whose direction is 0
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = weight_norm(nn.Linear(3, 4)), nn.Linear(4, 1)

    def forward(self, x):
        h = self.first(x)  # expect: nan, forward
        return self.last(h.tanh())


torch.manual_seed(0)
net = Net()
with torch.no_grad():
    net.first.parametrizations.weight.original1[1] = 0.0
optimizer = torch.optim.Adam(net.parameters())
loss = net(torch.randn(2, 3)).sum()
loss.backward()
optimizer.step()
print(loss.item())
