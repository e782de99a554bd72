import torch
from torch import nn

torch.manual_seed(23)
net = nn.Sequential(nn.Linear(3, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(net.parameters())
for _step in range(6):
    x = 10 + 4 * torch.randn(8, 3)
    loss = (net(x) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f} {net.eval()(x).mean().item():.6f}")
