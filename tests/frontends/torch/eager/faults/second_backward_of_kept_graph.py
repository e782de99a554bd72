# NaN gradient: only the second loss of a graph that is kept has a root of 0
import torch
from torch import nn

torch.manual_seed(0)
body = nn.Linear(3, 3, bias=False)
optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
x = torch.eye(3)[:2]
features = body(x)
first = features.square().mean()
spread = features - features.detach()
second = spread.square().sum().pow(0.5)  # expect: inf, backward
first.backward(retain_graph=True)
print(body.weight.grad.isfinite().all().item())
second.backward()
optimizer.step()
print(body.weight.tolist())
