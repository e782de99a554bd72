# NaN parameter: torch.func.grad of a length by hand, at 0
import torch
from torch.func import grad


def loss(w, x):
    residual = x @ w
    return residual.square().sum().sqrt()  # expect: inf, backward


torch.manual_seed(0)
w = torch.zeros(3)
x = torch.randn(5, 3)
for step in range(3):
    g = grad(loss)(w, x)
    w = w - 0.1 * g
print(w.sum().item())
