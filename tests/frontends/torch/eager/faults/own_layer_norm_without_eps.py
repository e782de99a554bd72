# NaN result: layer norm by hand of a constant row
import torch
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        spread = x.std(-1, keepdim=True)
        return self.gain * ((x - mean) / spread) + self.shift  # expect: nan, forward


torch.manual_seed(0)
net = nn.Sequential(LayerNorm(4), nn.Linear(4, 2))
x = torch.randn(3, 4)
x[2] = 7.0
y = net(x)
print(y.tolist())
