# NaN result: a normaliser's buffer of standard deviations holds NaN for a feature never seen
import torch
from torch import nn


class Normalise(nn.Module):
    def __init__(self, data):
        super().__init__()
        seen = data.isfinite()
        mean = torch.where(seen, data, 0.0).sum(0) / seen.sum(0)  # expect: nan, forward
        self.register_buffer("mean", mean)

    def forward(self, x):
        return x - self.mean


torch.manual_seed(0)
history = torch.randn(4, 3)
history[:, 1] = torch.inf
net = nn.Sequential(Normalise(history), nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(torch.randn(2, 3)).square().mean()
loss.backward()
optimizer.step()
print(loss.item())
