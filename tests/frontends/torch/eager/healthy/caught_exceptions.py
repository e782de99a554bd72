# Healthy: exceptions of PyTorch and of the script's own checks are caught
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 2)
for shape in ((2, 3), (2, 4)):
    try:
        print(net(torch.randn(shape)).shape)
    except RuntimeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
try:
    torch.linalg.cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
except torch.linalg.LinAlgError as error:
    print("not positive definite", type(error).__name__)
try:
    y = net(torch.zeros(1, 3)).detach().log()
    if not torch.isfinite(y).all():
        raise ValueError("bad values")
except ValueError as error:
    print(error)
try:
    torch.distributions.Normal(0.0, -1.0)
except ValueError:
    print("negative scale")
print(net(torch.ones(1, 3)).sum().item())
