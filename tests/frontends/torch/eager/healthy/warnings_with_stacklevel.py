# Healthy: warnings with a stacklevel, their lines are printed
import warnings
import torch
from torch import nn


def old_loss(x):
    warnings.warn("old_loss will go", DeprecationWarning, stacklevel=2)
    return x.square().mean()


class Net(nn.Module):
    def forward(self, x):
        warnings.warn("from forward", UserWarning, stacklevel=1)
        return x * 2


torch.manual_seed(0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.randn(3, requires_grad=True)
    loss = old_loss(Net()(x))
    loss.backward()
    torch.tensor(x.detach())
for w in caught:
    print(w.category.__name__, w.lineno, w.filename.endswith("stacklevel.py"), str(w.message)[:30])
print(loss.item(), x.grad.tolist())
