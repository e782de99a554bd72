import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
target = copy.deepcopy(q)
optimizer = torch.optim.RMSprop(q.parameters(), lr=1e-3)
for step in range(40):
    s, s2 = torch.randn(32, 4), torch.randn(32, 4)
    a, r = torch.randint(0, 3, (32,)), torch.randn(32)
    done = (torch.rand(32) < 0.1).float()
    with torch.no_grad():
        goal = r + 0.99 * (1 - done) * target(s2).max(1).values
    now = q(s).gather(1, a.unsqueeze(1)).squeeze(1)
    loss = F.smooth_l1_loss(now, goal)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q.parameters(), 10)
    optimizer.step()
    if step % 15 == 14:
        target.load_state_dict(q.state_dict())
print(f"{loss:.6f}")
