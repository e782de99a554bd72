# Infinite gradient: torch.special.entr at a probability of 0
import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
actor[2].bias.data[0] = 500.0
optimizer = torch.optim.RMSprop(actor.parameters(), lr=1e-3)
state = torch.randn(4, 2)
policy = actor(state).softmax(-1)
advantage = torch.randn(4)
gain = (policy[:, 0] * advantage).mean()
entropy = torch.special.entr(policy).sum(-1).mean()  # expect: inf, backward
loss = -gain - 0.01 * entropy
loss.backward()
optimizer.step()
print(loss.item())
