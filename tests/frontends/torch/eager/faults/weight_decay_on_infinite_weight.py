# Infinite parameter: one weight is set to inf as a "mask"; its decay is inf - inf
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2, bias=False)
with torch.no_grad():
    net.weight[:, 1] *= 0.5
    net.weight[0, 3] = float("inf")  # expect: inf, forward
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
x = torch.randn(3, 4)
loss = torch.tanh(net(x)).sum()
loss.backward()
optimizer.step()
print(net.weight.tolist())
