import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(7)
encoder = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 8))
head = nn.Linear(8, 2)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
x, y = torch.randn(40, 10), torch.randint(0, 2, (40,))
for _step in range(25):
    with torch.no_grad():
        h = encoder(x)
    loss = F.cross_entropy(head(h), y) + 0.1 * F.cross_entropy(head(encoder(x).detach()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
