# Infinite gradient: one module is called for two views, only the second is at its edge
import torch
from torch import nn


class Fisher(nn.Module):
    def forward(self, r):
        inside = (1 + r) / (1 - r + 1e-6)
        bent = inside.log() / 2
        return bent + torch.arccos(r)  # expect: inf, backward


torch.manual_seed(0)
w = nn.Parameter(torch.tensor([0.25, 0.5]))
fisher = Fisher()
optimizer = torch.optim.SGD([w], lr=0.1)
first = fisher(w)
second = fisher(w * 2)
loss = first.sum() + second.sum()
loss.backward(inputs=[w])
optimizer.step()
print(loss.item(), w.tolist())
