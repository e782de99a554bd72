# NaN result: spectral norm divides by the largest singular value of a zero weight
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

torch.manual_seed(0)
net = nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 1))
with torch.no_grad():
    net[0].parametrizations.weight.original.zero_()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(2, 4)
out = net(x)  # expect: nan, forward
loss = out.mean()
loss.backward()
optimizer.step()
print(loss.item())
