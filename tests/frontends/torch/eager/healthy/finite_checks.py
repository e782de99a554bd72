# Healthy: batches with NaN are found by checks and left out
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
batches = [torch.randn(4, 3) for _ in range(5)]
batches[1][2, 0] = float("nan")
batches[3][0, 1] = float("inf")
skipped = 0
for k, x in enumerate(batches):
    if torch.isnan(x).any() or not torch.isfinite(x).all():
        skipped += 1
        continue
    loss = (net(x)[:, 0] - x.sum(-1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(k, loss.item())
print("skipped", skipped, [b.isfinite().float().mean().item() for b in batches])
