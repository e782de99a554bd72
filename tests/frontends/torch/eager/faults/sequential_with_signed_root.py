# NaN gradient: signed root (bilinear pooling) in the middle of nn.Sequential, where dropout gives 0
import torch
from torch import nn


class SignedRoot(nn.Module):
    def forward(self, x):
        sign = x.sign()
        size = x.abs()
        return sign * size.sqrt()  # expect: nan, backward


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), SignedRoot(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(2):
    loss = net(torch.randn(6, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
