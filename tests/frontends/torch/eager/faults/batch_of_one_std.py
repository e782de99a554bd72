# NaN loss: standard deviation over a last batch of one sample
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
data = torch.randn(9, 3)
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def variance_term(z):
    std = torch.sqrt(z.var(dim=0) + 1e-4)  # expect: nan, forward
    return torch.relu(1 - std).mean()


for epoch in range(2):
    for batch in DataLoader(data, batch_size=4):
        loss = variance_term(net(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
