# NaN loss: a mixture density network takes log of densities that underflow to 0
import math
import torch
from torch import nn

torch.manual_seed(0)
body = nn.Linear(1, 6)
optimizer = torch.optim.Adam(body.parameters(), lr=0.01)
x = torch.linspace(-1, 1, 8)[:, None]
y = 40 * x


def nll(weight, mean, log_sigma, y):
    sigma = log_sigma.exp()
    density = torch.exp(-0.5 * ((y - mean) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    total = (weight.softmax(-1) * density).sum(-1)
    return -total.log().mean()  # expect: inf, forward


for step in range(2):
    loss = nll(*body(x).chunk(3, -1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
