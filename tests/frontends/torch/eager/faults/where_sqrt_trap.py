# NaN gradient: the root of a clamped number, chosen by torch.where
import torch

torch.manual_seed(0)
x = torch.linspace(-1, 1, 5)
w = torch.ones(5, requires_grad=True)
clamped = (x * w).clamp(min=0)
root = clamped**0.5  # expect: inf, backward
y = torch.where(clamped > 0, root, 0.0)
loss = y.sum()
loss.backward()
torch.optim.SGD([w], lr=0.1).step()
print(loss.item(), w.tolist())
