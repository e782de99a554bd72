# Healthy: checkpoints of both kinds, nested, with dropout and masks
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(0)
blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)) for _ in range(3)))
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
mask = torch.full((4, 4), -torch.inf).triu(1)


def attend(x):
    inner = checkpoint(blocks[0], x, use_reentrant=False)
    return (inner @ inner.T + mask).softmax(-1) @ inner


for step in range(3):
    x = torch.randn(4, 4, requires_grad=True)
    a = checkpoint(attend, x, use_reentrant=True)
    b = checkpoint_sequential(blocks, 2, a, use_reentrant=False)
    loss = b.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), x.grad.sum().item())
