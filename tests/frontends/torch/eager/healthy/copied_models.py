# Healthy: deepcopy of models with buffers of -inf, a target network that follows
import copy
import torch
from torch import nn

torch.manual_seed(0)
online = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
online.register_buffer("ceiling", torch.tensor([-torch.inf, 0.0]))
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=0.01)
for step in range(4):
    state, reward = torch.randn(6, 3), torch.randn(6)
    done = torch.tensor([0, 0, 1, 0, 1, 0]).bool()
    after = (target(state + 0.1) + target.ceiling).max(-1).values
    goal = reward + 0.9 * torch.where(done, 0.0, after)
    loss = nn.functional.smooth_l1_loss(online(state)[:, 0], goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for a, b in zip(target.parameters(), online.parameters()):
        a.lerp_(b, 0.1)
    print(step, loss.item(), target[2].bias.tolist())
