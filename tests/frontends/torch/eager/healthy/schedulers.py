# Healthy: schedulers of the learning rate, ReduceLROnPlateau starts with a best of inf
import torch
from torch import nn
from torch.optim import lr_scheduler as S

torch.manual_seed(0)
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
plateau = S.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
print(plateau.best)
chain = S.SequentialLR(
    optimizer,
    [S.LinearLR(optimizer, 0.1, total_iters=3), S.CosineAnnealingLR(optimizer, 5)],
    milestones=[3],
)
x = torch.randn(8, 2)
for _ in range(7):
    loss = (net(x)[:, 0] - x[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    chain.step()
    print(loss.item(), optimizer.param_groups[0]["lr"])
plateau.step(loss.detach())
plateau.step(1.0)
print(optimizer.param_groups[0]["lr"], float(plateau.best))
