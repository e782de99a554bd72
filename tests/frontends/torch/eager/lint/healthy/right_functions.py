import torch
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0] > 0)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(x, w, bias=None):
        return x @ w.t() + (0 if bias is None else bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w, grad.t() @ x, grad.sum(0)


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.half() * 2).float().exp()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * (2 * ctx.saved_tensors[0]).exp()


class Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(1, descending=True)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx, grad, _):
        return torch.zeros_like(grad).scatter(1, ctx.saved_tensors[0], grad)


torch.manual_seed(17)
layer, w = nn.Linear(4, 4), nn.Parameter(torch.randn(3, 4))
b = nn.Parameter(torch.zeros(3))
optimizer = torch.optim.Adam([*layer.parameters(), w, b], lr=1e-2)
x = torch.randn(12, 4)
for _step in range(8):
    h = Product.apply(Swish.apply(layer(x)), w, b)
    h = Maximum.apply(h)[0] + Half.apply(h * 0.1)
    loss = (Rectified.apply(h * 1.0) - x[:, :3]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
