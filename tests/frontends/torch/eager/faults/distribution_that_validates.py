# ValueError: Expected parameter loc ... but found invalid values: tensor([[nan, nan]])
import torch
from torch import nn
from torch.distributions import Normal


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 2)

    def act(self, observation):
        h = self.body(observation)
        mean = h / h.norm(dim=-1, keepdim=True)  # expect: nan, forward
        return Normal(mean, torch.ones_like(mean)).sample()


actor = Actor()
nn.init.zeros_(actor.body.weight)
nn.init.zeros_(actor.body.bias)
print(actor.act(torch.ones(1, 4)))
