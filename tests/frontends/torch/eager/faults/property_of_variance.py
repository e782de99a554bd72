# Infinite gradient: a standard deviation is a property, the root of a variance that starts at 0
import torch
from torch import nn


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.variance = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    @property
    def std(self):
        return self.variance**0.5  # expect: inf, backward

    def forward(self, n):
        return self.mean + self.std * torch.randn(n, 2)


torch.manual_seed(0)
net = Gaussian()
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
loss = (net(16) - 1).square().mean()
loss.backward()
optimizer.step()
print(loss.item(), net.std.tolist())
