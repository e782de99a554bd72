import torch
from torch import nn


def clip(parameters, limit):
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for g in grads:
            g.mul_(factor)  # expect: clip-before-unscale
    return norm


torch.manual_seed(9)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
opt = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
for _step in range(12):
    x = torch.randn(16, 4)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    opt.zero_grad()
    scaler.scale(loss).backward()
    clip(list(model.parameters()), 1.0)
    scaler.step(opt)
    scaler.update()
print(f"{loss:.5f}")
