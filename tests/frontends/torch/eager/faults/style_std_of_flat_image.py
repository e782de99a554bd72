# NaN gradient: the standard deviation of a flat channel, taken by hand
import torch
import torch.nn.functional as F
from torch import nn


class Style(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, bias=False)

    def forward(self, x):
        h = self.conv(x).flatten(2)
        mean = h.mean(-1, keepdim=True)
        return mean, (h - mean).pow(2).mean(-1).sqrt()  # expect: inf, backward


torch.manual_seed(0)
net = Style()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
mean, std = net(torch.zeros(1, 1, 8, 8))
loss = F.l1_loss(std, torch.ones_like(std)) + mean.square().sum()
loss.backward()
optimizer.step()
print(net.conv.weight.sum().item())
