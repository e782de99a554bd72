# NaN gradient: the backward of an own autograd.Function divides by 0
import torch


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        half = grad / 2
        return half / y  # expect: inf, backward


w = torch.nn.Parameter(torch.tensor([4.0, 0.0, 1.0]))
optimizer = torch.optim.SGD([w], lr=0.1)
Root.apply(w).sum().backward()
optimizer.step()
print(w.tolist())
