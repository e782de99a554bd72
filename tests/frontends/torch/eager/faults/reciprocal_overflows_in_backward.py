# Infinite gradient: 1 / x is finite at 1e-25, its derivative is not
import torch

torch.manual_seed(0)
temperature = torch.nn.Parameter(torch.tensor([1.0, 1e-25]))
optimizer = torch.optim.SGD([temperature], lr=1e-3)
energy = torch.tensor([0.5, 0.5])


def cooling(t):
    beta = 1.0 / t  # expect: inf, backward
    cold = torch.log1p(energy * beta)
    return beta * 1e-20 + cold


loss = cooling(temperature).sum()
loss.backward()
optimizer.step()
print(loss.item(), temperature.tolist())
