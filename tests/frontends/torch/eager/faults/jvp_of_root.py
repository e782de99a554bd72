# Infinite tangent: forward-mode derivative of a root at 0
import torch
from torch.func import jvp


def field(x):
    squares = x.square()
    total = squares.sum(-1)
    return total.sqrt()  # expect: nan, forward


torch.manual_seed(0)
x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
direction = torch.randn(2, 2)
value, tangent = jvp(field, (x,), (direction,))
print(value.tolist())
print(tangent.sum().item())
