# Infinite parameter: a learning rate of 1e38 overflows in the update itself
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=1e38, momentum=0.9)
x = torch.randn(4, 3) * 10
try:
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).sigmoid().sum() + net.weight.sum() * 10
        loss.backward()
        optimizer.step()  # expect: inf, update
        print("step done")
finally:
    print(net.weight.tolist())
