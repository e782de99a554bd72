# Infinite gradient: a Gaussian's scale underflows in its square
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
actor = nn.Linear(2, 2, bias=False)
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
state = torch.ones(3, 2)
mean, log_std = actor(state).unbind(-1)
std = (log_std.clamp(-1, 1) - 49).exp()
action = mean.detach()
z = (action - mean) / (std + 1e-30)  # expect: inf, backward
log_prob = Normal(0.0, 1.0).log_prob(z)
loss = -(log_prob + z * 1e20).mean()
loss.backward()
optimizer.step()
print(loss.item(), actor.weight.tolist())
