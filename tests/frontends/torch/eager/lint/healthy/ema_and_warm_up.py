import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(21)
net = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))
average = copy.deepcopy(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(k / 15, 1.0))
for _step in range(30):
    x = torch.randn(32, 4)
    loss = F.mse_loss(net(x), x.prod(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rates.step()
    with torch.no_grad():
        for p, q in zip(average.parameters(), net.parameters(), strict=False):
            p.lerp_(q, 0.05)
print(f"{loss:.6f} {average(torch.ones(1, 4)).item():.6f}")
