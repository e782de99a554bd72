# NaN parameter: LBFGS on a function whose logarithm leaves its domain
import torch

torch.manual_seed(0)
x = torch.nn.Parameter(torch.tensor([0.05, 0.02]))
optimizer = torch.optim.LBFGS([x], lr=1.0, max_iter=5)


def barrier(x):
    inside = x.sum()
    return inside * 3 - torch.log(x).sum()  # expect: nan, forward


def closure():
    optimizer.zero_grad()
    loss = -barrier(x)
    loss.backward()
    return loss


optimizer.step(closure)
print(x.tolist())
