# Healthy: clip_grad_norm_ and clip_grad_value_ of gradients that are large, or 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for scale in (1e12, 1.0, 0.0):
    loss = net(torch.randn(4, 3)).mean() * scale
    optimizer.zero_grad()
    loss.backward()
    largest = nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type=float("inf"))
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5, error_if_nonfinite=True)
    nn.utils.clip_grad_value_(net.parameters(), 0.1)
    optimizer.step()
    print(largest.item(), norm.item(), net[2].bias.item())
