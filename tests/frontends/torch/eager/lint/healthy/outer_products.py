import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
embed = nn.Linear(3, 1)
centers = nn.Parameter(torch.randn(24))
optimizer = torch.optim.Adam([*embed.parameters(), centers], lr=1e-2)
x, y = torch.randn(24, 3), torch.randn(24)
for _step in range(25):
    z = embed(x).squeeze(1)
    near = torch.exp(-((z[:, None] - centers) ** 2))
    ranks = F.softplus(-(z[:, None] - z[None]) * torch.sign(y[:, None] - y[None])).mean()
    energy = (z.unsqueeze(1) - y).abs().mean() - (z[:, None] - z).abs().mean() / 2
    spread = (z.view(-1, 1) - y.view(1, -1)).square().mean()
    loss = ranks + energy - near.mean() + 0.01 * spread
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
