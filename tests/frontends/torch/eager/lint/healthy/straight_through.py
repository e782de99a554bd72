import torch
from torch import nn


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class Quantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return torch.round((x / scale).clamp(-8, 7)) * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        inside = (x / scale).abs() < 7.5
        slope = torch.where(inside, torch.round(x / scale) - x / scale, 7.0)
        return grad * inside, (grad * slope).sum()


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + 10 * v.abs()) ** 2


torch.manual_seed(15)
layer, scale = nn.Linear(6, 6), nn.Parameter(torch.tensor(0.1))
optimizer = torch.optim.Adam([*layer.parameters(), scale], lr=1e-2)
x = torch.randn(16, 6)
for _step in range(20):
    h = Quantise.apply(layer(x), scale)
    loss = (Sign.apply(h) - x.sign()).square().mean() + Spike.apply(h).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
