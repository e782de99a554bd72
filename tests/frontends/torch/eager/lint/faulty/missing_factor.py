import torch
from torch import nn


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x  # expect: function-gradient


torch.manual_seed(13)
layer = nn.Linear(3, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
x = torch.randn(16, 3)
for _step in range(5):
    optimizer.zero_grad()
    loss = Square.apply(layer(x)).mean()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
