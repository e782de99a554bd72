import copy

import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
        self.actor, self.critic = nn.Linear(24, 2), nn.Linear(24, 1)
        self.slow = copy.deepcopy(self.critic)

    def update(self, tau=0.05):
        for p, s in zip(self.critic.parameters(), self.slow.parameters(), strict=False):
            s.data.mul_(1 - tau).add_(p.data, alpha=tau)


torch.manual_seed(10)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
for _step in range(30):
    h = agent.trunk(torch.randn(16, 6))
    policy = torch.distributions.Categorical(logits=agent.actor(h))
    action = policy.sample()
    value = agent.critic(h).squeeze(-1)
    with torch.no_grad():
        back = torch.randn(16) + 0.9 * agent.slow(h).squeeze(-1)
    advantage = (back - value).detach()
    loss = (back - value).square().mean() - (policy.log_prob(action) * advantage).mean()
    loss = loss - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    agent.update()
print(f"{loss:.6f}")
