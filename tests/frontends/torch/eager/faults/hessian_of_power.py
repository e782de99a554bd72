# Infinite Hessian: second derivative of |x| ** 1.5 at 0
import torch
from torch.autograd.functional import hessian

torch.manual_seed(0)
target = torch.tensor([1.0, -2.0, 3.0])


def objective(x):
    residual = x - target
    quadratic = residual.square().sum()
    return quadratic + x.abs().pow(1.5).sum()  # expect: inf, backward


h = hessian(objective, torch.zeros(3))
step = torch.linalg.solve_ex(h + torch.eye(3), torch.ones(3))[0]
print(h.diagonal().sum().item())
