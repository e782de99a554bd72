# NaN gradient: backward is given a vector that was divided by a count of 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
labels = torch.tensor([[1, 0], [1, 0]])
y = net(torch.randn(2, 3))
per_class = labels.sum(0)
weight = labels / per_class  # expect: nan, forward
torch.autograd.backward(y, grad_tensors=weight)
optimizer.step()
print(net.weight.tolist())
