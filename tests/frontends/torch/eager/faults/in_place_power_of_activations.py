# NaN gradient: an in-place root of activations that dropout made 0
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
body, head = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
x = torch.randn(3, 4)
for step in range(2):
    h = body(x).square()
    h = F.dropout(h, 0.5)
    h.pow_(0.5)  # expect: inf, backward
    h.mul_(2)
    loss = head(h).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
