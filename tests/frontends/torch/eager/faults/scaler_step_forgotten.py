# Infinite parameter: gradients of GradScaler are unscaled nowhere, optimizer.step is called itself
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1).half()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
x, y = torch.randn(8, 4).half() * 3, torch.randn(8, 1).half()
for step in range(2):
    optimizer.zero_grad()
    prediction = net(x)
    error = prediction - y
    loss = (error * error).sum()  # expect: inf, backward
    scaler.scale(loss.float()).backward()
    optimizer.step()  # should be scaler.step(optimizer)
    print(step, loss.item())
