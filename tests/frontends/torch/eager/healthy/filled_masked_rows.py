# Healthy: rows that are masked as a whole are filled before and after logsumexp
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
mask = torch.tensor([[True, True, False, True], [False] * 4])
for step in range(2):
    scores = net(torch.randn(2, 3)).masked_fill(~mask, float("-inf"))
    energy = torch.logsumexp(scores, -1).masked_fill(~mask.any(-1), 0.0)
    safe = scores.masked_fill(~mask.any(-1, keepdim=True), 0.0).softmax(-1)
    loss = energy.sum() + safe.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), net.bias.tolist())
