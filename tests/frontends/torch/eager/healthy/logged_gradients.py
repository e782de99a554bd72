# Healthy: norms of gradients, parameters and activations are logged, ratios without 0 / 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
nn.init.zeros_(net[2].weight)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
records = {}
net[1].register_forward_hook(lambda m, a, out: records.update(dead=(out == 0).float().mean()))
for step in range(3):
    loss = nn.functional.cross_entropy(net(torch.randn(6, 3)), torch.tensor([0, 1] * 3))
    optimizer.zero_grad()
    loss.backward()
    for name, p in net.named_parameters():
        size = p.detach().norm()
        ratio = p.grad.norm() / size if size > 0 else torch.zeros(())
        records[name] = (p.grad.norm().item(), ratio.item())
    optimizer.step()
    print(step, loss.item(), records)
