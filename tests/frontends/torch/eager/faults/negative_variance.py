# NaN loss: variance as E[x^2] - E[x]^2 is slightly below 0
import torch


def standardize(x):
    mean = x.mean()
    variance = (x * x).mean() - mean * mean
    return (x - mean) / variance.sqrt()  # expect: nan, forward


torch.manual_seed(0)
offset = torch.nn.Parameter(torch.tensor(100.8))
optimizer = torch.optim.SGD([offset], lr=0.1)
flat = torch.ones(3)
loss = (standardize(offset * flat) - 1).square().mean()
loss.backward()
optimizer.step()
print(loss.item(), offset.item())
