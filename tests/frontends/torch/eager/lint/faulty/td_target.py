import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
online = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
target = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
for step in range(30):
    s, s2 = torch.randn(16, 4), torch.randn(16, 4)
    a = torch.randint(0, 2, (16, 1))
    r = torch.randn(16)
    with torch.no_grad():
        best = target(s2).max(1, keepdim=True).values
        goal = r + 0.9 * best
    q = online(s).gather(1, a)
    loss = F.smooth_l1_loss(q, goal)  # expect: broadcast
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        target.load_state_dict(online.state_dict())
print(f"{loss:.5f}")
