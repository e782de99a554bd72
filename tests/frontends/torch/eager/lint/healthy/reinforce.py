import torch
from torch import nn

torch.manual_seed(11)
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _episode in range(25):
    logs, rewards = [], []
    state = torch.randn(3)
    for _ in range(8):
        dist = torch.distributions.Categorical(logits=policy(state))
        action = dist.sample()
        logs.append(dist.log_prob(action))
        rewards.append(float(action == (state[0] > 0)))
        state = torch.randn(3)
    gains = torch.tensor([sum(rewards[k:]) for k in range(8)])
    loss = -(torch.stack(logs) * (gains - gains.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
