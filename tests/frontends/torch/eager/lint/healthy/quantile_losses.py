import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
taus = (torch.arange(16) + 0.5) / 16
for _step in range(30):
    x = torch.randn(16, 2)
    y = x[:, 0] + 0.3 * torch.randn(16)
    error = y.unsqueeze(1) - net(x)
    loss = torch.maximum(taus * error, (taus - 1) * error).mean()
    pairs = y.view(-1, 1, 1) - net(x).unsqueeze(1)
    loss = loss + 0.1 * F.huber_loss(pairs, torch.zeros_like(pairs))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
