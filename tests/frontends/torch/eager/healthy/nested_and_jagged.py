# Healthy: nested tensors with the jagged layout, padded with -inf
import warnings
import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
lin = nn.Linear(3, 2)
rows = [torch.randn(4, 3), torch.randn(2, 3)]
jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
out = lin(jagged).relu()
padded = torch.nested.to_padded_tensor(out, -torch.inf)
print(padded.shape, padded.isinf().sum().item())
pooled = padded.amax(1)
loss = pooled.square().sum()
loss.backward()
print(loss.item(), lin.weight.grad.tolist())
print(out.offsets().tolist(), out.values().sum().item())
