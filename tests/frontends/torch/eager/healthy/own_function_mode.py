# Healthy: a user's own TorchFunctionMode, which replaces log by a clamped one
import torch
from torch.overrides import TorchFunctionMode


class SafeLog(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.log, torch.Tensor.log):
            return args[0].clamp(min=1e-6).log()
        return function(*args, **(kwargs or {}))


torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([0.0, 0.5, 1.0]))
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(2):
    with SafeLog():
        loss = -(w * w.log()).sum() + torch.log(w.square().sum())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), w.tolist())
