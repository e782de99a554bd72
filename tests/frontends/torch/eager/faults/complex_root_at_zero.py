# NaN gradient: the root of a complex number that is 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 2, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(4, 3)
x[1] = 0  # a padded row
z = torch.view_as_complex(net(x))
index = 1.5 + z
delta = torch.sqrt(index - 1.5)  # expect: nan, backward
loss = (delta.real - 1).square().mean()
loss.backward()
optimizer.step()
print(net.weight.tolist())
