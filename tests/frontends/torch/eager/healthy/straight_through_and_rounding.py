# Healthy: an own autograd.Function that avoids 0 / 0 in its backward, and one that rounds
import torch


class SafeRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        slope = 0.5 / y  # inf at 0
        return torch.where(y > 0, grad * slope, 0.0)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([0.0, 1.2, 4.0]))
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(2):
    loss = SafeRoot.apply(w).sum() + Round.apply(w * 3).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), w.tolist())
