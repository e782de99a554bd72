# NaN gradient: a hook after accumulation divides by the spread of a constant gradient
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 3)


def standardize(p):
    centred = p.grad - p.grad.mean()
    p.grad.copy_(centred / p.grad.std())  # expect: nan, backward


for p in net.parameters():
    p.register_post_accumulate_grad_hook(standardize)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(4, 2)).sum().backward()
optimizer.step()
print(net.bias.tolist())
