import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(32, 4)
y = x.sum(1)
for _step in range(25):
    pred = net(x)
    loss = F.mse_loss(pred, y.unsqueeze(1)) + F.l1_loss(pred.squeeze(1), y)
    loss = loss + F.smooth_l1_loss(pred[:, 0], y) + ((pred - y[:, None]) ** 2).mean()
    loss = loss + F.binary_cross_entropy_with_logits(pred, (y > 0).float().view(-1, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
