# NaN gradient: Cholesky factor of a kernel matrix with two equal points
import torch

torch.manual_seed(0)
length = torch.nn.Parameter(torch.tensor(1.0))
x = torch.tensor([0.0, 0.0, 2.0])
optimizer = torch.optim.Adam([length], lr=0.1)


def factor(kernel):
    lower, info = torch.linalg.cholesky_ex(kernel)  # expect: nan, backward
    return lower


kernel = torch.exp(-((x[:, None] - x[None, :]) / length) ** 2)
lower = factor(kernel)
sample = lower @ torch.tensor([0.5, -1.0, 2.0])
loss = sample.sum()
loss.backward()
optimizer.step()
print(loss.item(), length.item())
