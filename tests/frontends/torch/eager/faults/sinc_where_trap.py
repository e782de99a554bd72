# NaN gradient: sin(x) / x with torch.where at 0
import torch

torch.manual_seed(0)
shift = torch.nn.Parameter(torch.zeros(1))
grid = torch.arange(-2.0, 3.0)
optimizer = torch.optim.SGD([shift], lr=1e-2)
for _ in range(2):
    t = grid - shift
    ratio = t.sin() / t  # expect: nan, backward
    kernel = torch.where(t == 0, torch.ones_like(t), ratio)
    loss = (kernel - 0.3).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
