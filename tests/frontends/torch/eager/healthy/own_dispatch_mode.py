# Healthy: a user's own TorchDispatchMode counts ops
from collections import Counter
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.seen[str(op)] += 1
        return op(*args, **(kwargs or {}))


torch.manual_seed(0)
net = nn.Linear(3, 2)
with Count() as count:
    out = net(torch.randn(4, 3)).masked_fill(torch.eye(4, 2).bool(), -torch.inf)
    loss = out.softmax(-1).square().sum()
    loss.backward()
print(loss.item(), net.weight.grad.tolist())
print(sorted(count.seen.items()))
