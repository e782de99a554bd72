# NaN loss: a negative number to the power of 1/3
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(8, 2)
volume = x.abs().prod(-1)
for epoch in range(3):
    predicted = net(x)[:, 0]
    edge = predicted ** (1 / 3)  # expect: nan, forward
    loss = nn.functional.l1_loss(edge, volume)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
