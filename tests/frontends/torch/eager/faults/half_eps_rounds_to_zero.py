# NaN gradient: 1e-8 under the root is 0 in f16
import torch
from torch import nn


class RMS(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = x.square().mean(-1, keepdim=True)
        root = torch.sqrt(mean + 1e-8)  # expect: nan, backward
        return x / (root + 1e-3) * self.gain


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), RMS(4)).half()
nn.init.zeros_(net[0].bias)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.zeros(2, 3).half() + 1e-7
net(x).float().sum().backward()
optimizer.step()
print(net[0].bias.tolist())
