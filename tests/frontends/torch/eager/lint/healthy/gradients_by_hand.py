import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(37)
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.randn(32, 3)
for _step in range(25):
    loss = F.mse_loss(net(x), x[:, :1])
    for p, g in zip(
        net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=False
    ):
        p.grad = g.clamp(-1, 1)
    optimizer.step()
weights = nn.Parameter(torch.zeros(6))
search = torch.optim.SGD([weights], lr=0.1)
for _step in range(25):
    noise = torch.randn(16, 6)
    scores = -(weights.detach() + 0.1 * noise - 1).square().sum(1)
    weights.grad = -(scores[:, None] * noise).mean(0)
    search.step()
print(f"{loss:.6f} {weights.sum().item():.6f}")
