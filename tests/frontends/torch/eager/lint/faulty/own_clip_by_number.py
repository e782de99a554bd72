import torch
from torch import nn

torch.manual_seed(68)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
for _ in range(12):
    x = torch.randn(16, 4)
    loss = (net(x) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    for p in net.parameters():
        p.grad = torch.clamp(p.grad, -1.0, 1.0)  # expect: clip-before-unscale
    scaler.step(opt)
    scaler.update()
print(f"{loss:.4f}")
