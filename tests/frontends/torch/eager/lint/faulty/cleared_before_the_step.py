import torch
from torch import nn

torch.manual_seed(39)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.0)
for _step in range(30):
    x = torch.randn(16, 4)
    loss = (net(x) - x[:, :1]).pow(2).mean()
    loss.backward()  # expect: loss-stalls
    opt.zero_grad()
    opt.step()
print(f"{loss:.4f}")
