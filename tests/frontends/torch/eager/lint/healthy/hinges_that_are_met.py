import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(26)
net = nn.Linear(2, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(40, 2) * 0.1
y = torch.arange(40) % 10
x[torch.arange(40), y % 2] += y.float() * 3
for _step in range(40):
    scores = net(x)
    margins = F.relu(scores - scores.gather(1, y[:, None]) - 500.0)
    loss = margins.sum(1).mean() + (scores - 400).clamp(min=0).mean() + scores.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
