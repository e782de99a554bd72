# Infinite Jacobian: jacrev of a radius at the origin
import torch
from torch.func import jacrev


def polar(x):
    squares = x.square()
    radius = squares.sum().sqrt()  # expect: inf, backward
    return radius[None]


torch.manual_seed(0)
x = torch.zeros(2)
jacobian = jacrev(polar)(x)
print(jacobian.shape)
print(jacobian[0].sum().item())
