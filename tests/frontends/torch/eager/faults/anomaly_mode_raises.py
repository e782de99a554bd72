# RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.
import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)
torch.manual_seed(0)
layer = nn.Linear(3, 2)
x = torch.zeros(4, 3)
nn.init.zeros_(layer.bias)
h = layer(x)
size = (h * h).sum(dim=1)
distance = torch.sqrt(size)  # expect: inf, backward
(distance - 1).pow(2).mean().backward()
print(layer.weight.grad)
