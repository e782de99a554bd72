import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(29)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(64, 4)
for step in range(100):
    rows = torch.randint(0, 64, (16,))
    loss = F.mse_loss(net(x[rows]), x[rows, :1]) / 4
    loss.backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 8 == 3)
print(f"{loss:.6f}")
