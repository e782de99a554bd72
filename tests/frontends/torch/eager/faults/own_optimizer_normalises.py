# NaN parameter: an own optimizer divides each gradient by its length
import torch
from torch import nn


class Normalised(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                direction = p.grad / p.grad.norm()  # expect: nan, update
                p.sub_(direction, alpha=group["lr"])


torch.manual_seed(0)
net = nn.Linear(2, 2)
optimizer = Normalised(net.parameters(), lr=0.1)
(net(torch.zeros(3, 2)) * 2).sum().backward()
optimizer.step()
print(net.weight.tolist())
