# NaN gradient: the derivative of an exponent, x ** p * log(x) at x = 0
import torch


class Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x, p)
        return x**p

    @staticmethod
    def backward(ctx, grad):
        x, p = ctx.saved_tensors
        grad_x = grad * p * x ** (p - 1)
        log = x.log()  # expect: inf, backward
        return grad_x, (grad * x**p * log).sum()


p = torch.nn.Parameter(torch.tensor(2.0))
optimizer = torch.optim.SGD([p], lr=0.1)
Power.apply(torch.tensor([0.0, 1.0, 2.0]), p).sum().backward()
optimizer.step()
print(p.item())
