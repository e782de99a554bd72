import torch
from torch import nn

torch.manual_seed(40)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)  # expect: loss-stalls
for _step in range(30):
    x = torch.randn(16, 4)
    loss = (net(x) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step  # noqa: B018
print(f"{loss:.4f}")
