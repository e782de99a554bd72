# NaN loss: mean by scatter_add where a group has no members
import torch
from torch import nn

torch.manual_seed(0)
embed = nn.Linear(3, 2)
group = torch.tensor([0, 0, 2, 3])
optimizer = torch.optim.SGD(embed.parameters(), lr=0.1)
for step in range(2):
    h = embed(torch.randn(4, 3))
    total = torch.zeros(4, 2).scatter_add(0, group[:, None].expand(4, 2), h)
    size = torch.bincount(group, minlength=4).float()
    mean = total / size[:, None]  # expect: nan, forward
    loss = mean.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
