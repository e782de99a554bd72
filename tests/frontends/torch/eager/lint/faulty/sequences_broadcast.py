import torch
from torch import nn

torch.manual_seed(53)
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(20):
    x = torch.randn(6, 6, 5)
    y = x.sum(-1)
    loss = (net(x) - y).abs().mean()  # expect: broadcast
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.4f}")
