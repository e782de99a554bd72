# Healthy: GradScaler with clipping and fused AdamW, norms of skipped steps are inf
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
x = torch.randn(16, 4)
for step in range(8):
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = (out.float() - 1).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item(), norm.item(), scaler.get_scale())
