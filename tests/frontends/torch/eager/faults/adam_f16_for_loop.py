# NaN parameter: Adam in f16, the square of a small gradient and eps are both 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 1, bias=False).half()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False)
x = torch.full((1, 2), 1e-5).half()
for step in range(2):
    y = net(x)
    optimizer.zero_grad()
    y.sum().backward()
    optimizer.step()  # expect: inf, update
    print(step, y.item())
