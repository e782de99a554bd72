import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(19)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _step in range(20):
    x = torch.randn(24, 8)
    a = F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1)
    b = F.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1)
    loss = F.cross_entropy(a @ b.t() / 0.1, torch.arange(24))
    distance = (a[:, None] - b[None]).square().sum(-1)
    loss = loss + F.relu(1.0 - distance + distance.diag()[:, None]).mean()
    loss = loss + F.triplet_margin_loss(a, b, b.roll(1, 0))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
