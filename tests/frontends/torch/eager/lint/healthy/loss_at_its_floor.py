import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(38)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for _step in range(40):
    loss = F.cross_entropy(net(torch.randn(16, 4)), torch.randint(0, 2, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
