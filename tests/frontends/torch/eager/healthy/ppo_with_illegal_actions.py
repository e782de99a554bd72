# Healthy: PPO, illegal actions have logits of -inf
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
net = nn.Linear(3, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
state = torch.randn(12, 3)
legal = torch.rand(12, 4) > 0.4
legal[:, 0] = True


def policy():
    return Categorical(logits=net(state).masked_fill(~legal, float("-inf")))


with torch.no_grad():
    old = policy()
    action = old.sample()
    before = old.log_prob(action)
advantage = torch.randn(12)
for _ in range(4):
    ratio = (policy().log_prob(action) - before).exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), legal.gather(1, action[:, None]).all().item())
