# Infinite loss: the learning rate is too large, the error grows until its square overflows
import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-1, 1, 16)[:, None]
y = 3 * x + 1
net = nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=50.0)
for step in range(40):
    prediction = net(x)
    error = prediction - y
    loss = error.square().mean()  # expect: inf, forward
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), net.weight.item())
