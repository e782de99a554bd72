import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(30)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
x = torch.randn(64, 4)
for _step in range(25):
    loss = F.mse_loss(net(x), x[:, :1])
    net.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for p in net[0].parameters():
            p -= 0.1 * p.grad
print(f"{loss:.6f}")
