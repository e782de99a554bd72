import copy

import torch
from torch import nn

torch.manual_seed(19)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
best = copy.deepcopy(model)
optimizer = torch.optim.Adam(best.parameters(), lr=1e-2)  # expect: loss-stalls
for _step in range(40):
    x = torch.randn(32, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    model.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.4f}")
