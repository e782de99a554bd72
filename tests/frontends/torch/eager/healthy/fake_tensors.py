# Healthy: FakeTensorMode knows shapes, not values
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)
with FakeTensorMode() as mode:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    y = net(torch.empty(5, 8)) / torch.zeros(4)
    y.sum().backward()
    print(y.shape, net[0].weight.grad.shape, type(y).__name__)
real = torch.randn(3, 8)
fake = mode.from_tensor(real)
print((fake @ fake.T).shape, (real @ real.T).trace().item())
