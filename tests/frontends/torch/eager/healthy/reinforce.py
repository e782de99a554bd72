# Healthy: REINFORCE with a baseline on a bandit
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
arms = torch.tensor([0.1, 0.9, 0.4])
best = float("-inf")
for episode in range(6):
    choice = Categorical(logits=policy(torch.ones(16, 2)))
    action = choice.sample()
    reward = arms[action]
    advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
    loss = -(choice.log_prob(action) * advantage).mean() - 0.01 * choice.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    best = max(best, reward.mean().item())
    print(episode, loss.item(), best)
