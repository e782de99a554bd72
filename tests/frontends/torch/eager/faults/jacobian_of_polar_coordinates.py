# NaN: jacrev of polar coordinates at the origin
import torch
from torch.func import jacrev


def polar(x):
    squares = x.square()
    radius = squares.sum().sqrt()  # expect: inf, backward
    height = x[1] * 2
    return torch.stack([radius, height])


torch.manual_seed(0)
x = torch.zeros(2)
jacobian = jacrev(polar)(x)
print(jacobian.shape)
print(jacobian[0].sum().item())
