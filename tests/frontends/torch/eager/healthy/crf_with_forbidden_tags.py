# Healthy: a CRF's partition function with -inf transitions, trained
import torch
from torch import nn

torch.manual_seed(0)
allowed = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]]).bool()
weights = nn.Parameter(torch.randn(3, 3))
net = nn.Linear(4, 3)
optimizer = torch.optim.Adam([weights, *net.parameters()], lr=0.1)
x, tags = torch.randn(5, 4), [0, 1, 2, 2, 1]
for _ in range(3):
    transition = weights.masked_fill(~allowed, -torch.inf)
    emission = net(x)
    alpha, gold = emission[0], emission[0, tags[0]]
    for t in range(1, 5):
        alpha = torch.logsumexp(alpha[:, None] + transition, 0) + emission[t]
        gold = gold + transition[tags[t - 1], tags[t]] + emission[t, tags[t]]
    loss = alpha.logsumexp(0) - gold
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
