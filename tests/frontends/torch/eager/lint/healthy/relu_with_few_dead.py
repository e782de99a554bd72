import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(25)
net = nn.Sequential(
    nn.Linear(1, 64),
    nn.ReLU(),
    nn.Linear(64, 64),
    nn.ReLU(),
    nn.Linear(64, 4),
    nn.ReLU(),
    nn.Linear(4, 1),
)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _step in range(40):
    x = torch.rand(32, 1)
    loss = F.mse_loss(net(x), torch.sin(6 * x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
