# Infinite loss: REINFORCE takes log of a probability that underflows to 0
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2), nn.Softmax(-1))
policy[2].bias.data = torch.tensor([120.0, -120.0])
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def returns(rewards, discount=0.9):
    total = 0.0
    for reward in reversed(rewards):
        total = reward + discount * total
        yield total


states, actions = torch.randn(3, 2), torch.tensor([0, 1, 0])
gains = torch.tensor(list(returns([1.0, 0.5, 2.0]))[::-1])
chosen = policy(states).gather(1, actions[:, None])[:, 0]
loss = -(chosen.log() * gains).sum()  # expect: inf, forward
loss.backward()
optimizer.step()
print(loss.item())
