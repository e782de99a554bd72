import torch
import torch.nn.functional as F
from torch import nn


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, amount):
        ctx.amount = amount
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.amount * grad, None


class Limited(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


torch.manual_seed(16)
body, task, domain = nn.Linear(5, 8), nn.Linear(8, 2), nn.Linear(8, 2)
params = [*body.parameters(), *task.parameters(), *domain.parameters()]
optimizer = torch.optim.SGD(params, lr=0.05)
x, y, d = torch.randn(32, 5), torch.randint(0, 2, (32,)), torch.randint(0, 2, (32,))
for _step in range(25):
    h = Limited.apply(torch.tanh(body(x)))
    loss = F.cross_entropy(task(h), y) + F.cross_entropy(domain(Reverse.apply(h, 0.3)), d)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
