import torch
from torch import nn

torch.manual_seed(2)
net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(3, 4), torch.randn(3, 3)
weights = torch.tensor([0.2, 0.3, 0.5])
scale = torch.rand(3, 1)
for _step in range(22):
    loss = (weights * (net(x) - y) ** 2).sum() + ((net(x) * scale - y.mean(0)) ** 2).mean()
    loss = loss + (net(x)[:, :1] - y[:, :1]).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
