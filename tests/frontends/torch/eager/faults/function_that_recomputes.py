# NaN gradient: an own autograd.Function recomputes its forward and differentiates it inside
import torch


def block(x, w):
    return (x * w).square().sqrt()  # expect: inf, backward


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return block(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            return torch.autograd.grad(block(x, w), (x, w), grad)


w = torch.nn.Parameter(torch.tensor([1.0, 0.0, 2.0]))
Recompute.apply(torch.ones(3), w).sum().backward()
torch.optim.SGD([w], lr=0.1).step()
print(w.tolist())
