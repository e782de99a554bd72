# Infinite gradient: a loss in f16 that is scaled by hand overflows in the backward
import torch
from torch import nn

torch.manual_seed(0)
first, second = nn.Linear(8, 8).half(), nn.Linear(8, 1).half()
nn.init.constant_(second.weight, 20.0)
params = [*first.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(params, lr=1e-3)
x = torch.randn(4, 8).half()
h = torch.tanh(first(x))
y = second(h)  # expect: inf, backward
loss = y.float().sum()
scaled = loss * 6000
scaled.backward()
optimizer.step()
print(loss.item(), first.bias.isnan().any().item())
