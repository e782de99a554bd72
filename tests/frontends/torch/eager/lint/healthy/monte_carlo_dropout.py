import torch
from torch import nn

torch.manual_seed(24)
net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for _k in range(40):
    x = torch.randn(32, 3)
    loss = (net(x) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
x = torch.randn(8, 3)
with torch.no_grad():
    samples = torch.stack([net(x) for _ in range(20)])
print(f"{loss:.4f} {samples.std(0).mean():.4f}")
