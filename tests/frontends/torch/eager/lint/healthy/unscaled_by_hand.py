import torch
from torch import nn

torch.manual_seed(7)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for _k in range(12):
    x = torch.randn(8, 4)
    loss = (net(x) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    factor = 1 / scaler.get_scale()
    for p in net.parameters():
        p.grad.mul_(factor)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    scaler.update(256.0)
print(f"{loss:.5f}")
