# NaN loss: an activation overflows f16 under autocast; GradScaler skips, but the loss is NaN
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
nn.init.constant_(net[0].weight, 30.0)
nn.init.constant_(net[2].weight, 10.0)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
x = torch.full((4, 16), 20.0)
for step in range(3):
    with torch.autocast("cpu", dtype=torch.float16):
        h = net[0](x)
        h = net[1](h)
        y = net[2](h)  # expect: inf, forward
        loss = (y[:, 0] - y[:, 1]).float().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item())
