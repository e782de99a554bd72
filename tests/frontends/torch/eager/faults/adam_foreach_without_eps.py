# NaN parameter: Adam with eps 0, a parameter that gets no gradient but zeros
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
nn.init.constant_(net[0].bias, -9.0)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=0, foreach=True)


def train(batch):
    optimizer.zero_grad(set_to_none=False)
    net(batch).square().mean().backward()
    return optimizer.step()  # expect: nan, update


for _ in range(2):
    train(torch.rand(4, 2))
print(net[0].weight.tolist())
