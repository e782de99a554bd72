# Healthy: the best loss starts at inf, patience ends the training
import copy
import math
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.4)
best, patience, kept = float("inf"), 0, None
x = torch.randn(16, 2)
y = x.sum(-1, keepdim=True) + 0.1 * torch.randn(16, 1)
for epoch in range(50):
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < best - 1e-3:
        best, patience, kept = loss.item(), 0, copy.deepcopy(net.state_dict())
    else:
        patience += 1
    if patience == 3:
        break
net.load_state_dict(kept)
print(epoch, best, math.isinf(best), net.weight.tolist())
