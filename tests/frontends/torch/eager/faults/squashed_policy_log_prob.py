# Infinite loss: soft actor-critic, log(1 - tanh(a) ** 2) where tanh rounds to 1
import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Linear(2, 2)
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)


def sample(state):
    mean, log_std = actor(state).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    action = torch.tanh(raw * 40)
    log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2))  # expect: inf, forward
    return action, log_prob.sum(-1)


action, log_prob = sample(torch.randn(4, 2) * 3)
loss = (0.2 * log_prob - action.sum(-1)).mean()
loss.backward()
optimizer.step()
print(loss.item())
