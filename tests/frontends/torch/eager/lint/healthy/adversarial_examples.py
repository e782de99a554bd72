import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(31)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
for _step in range(20):
    near = x.clone().requires_grad_()
    F.cross_entropy(net(near), y).backward()
    near = (x + 0.05 * near.grad.sign()).detach()
    loss = F.cross_entropy(net(near), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
patch = torch.zeros(6, requires_grad=True)
attack = torch.optim.SGD([patch], lr=0.1)
net.eval()
for _step in range(25):
    loss = -F.cross_entropy(net(x + patch), y)
    attack.zero_grad()
    loss.backward()
    attack.step()
print(f"{loss:.6f}")
