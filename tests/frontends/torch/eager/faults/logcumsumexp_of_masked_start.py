# NaN gradient: cumulative logsumexp whose first elements are masked
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
pad = torch.tensor([-torch.inf, -torch.inf, 0.0, 0.0, 0.0])
hazards = net(torch.randn(2, 3)) + pad
cumulative = torch.logcumsumexp(hazards, dim=-1)  # expect: nan, backward
loss = cumulative[:, 2:].mean()
loss.backward()
optimizer.step()
print(loss.item(), net.bias.tolist())
