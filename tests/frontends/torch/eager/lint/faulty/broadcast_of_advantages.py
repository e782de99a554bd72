import torch
from torch import nn

torch.manual_seed(2)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for _episode in range(25):
    states = torch.randn(40, 4)
    log_p = torch.log_softmax(policy(states), dim=-1)
    actions = torch.distributions.Categorical(logits=log_p.detach()).sample()
    rewards = (actions == states[:, :3].argmax(1)).float()
    advantages = rewards - rewards.mean()
    chosen = log_p.gather(1, actions[:, None])
    loss = -(chosen * advantages).mean()  # expect: broadcast
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{rewards.mean():.4f}")
