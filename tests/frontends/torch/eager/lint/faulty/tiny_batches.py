import torch
from torch import nn

torch.manual_seed(62)
norm = nn.BatchNorm1d(16)  # expect: eval-differs
net = nn.Sequential(nn.Linear(6, 16), norm, nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
net.train()
for _step in range(80):
    x = torch.randn(2, 6)
    loss = (net(x) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
net.eval()
with torch.no_grad():
    x = torch.randn(64, 6)
    print(f"{(net(x) - x[:, :1]).pow(2).mean():.4f}")
