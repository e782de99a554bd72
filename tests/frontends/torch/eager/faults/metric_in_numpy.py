# predictions are handed to NumPy, where the metric is computed
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)


@torch.no_grad()
def evaluate(batches):
    rows = []
    for x in batches:
        scores = model(x)
        unit = scores / scores.norm(dim=1, keepdim=True) * (x.abs().amax(dim=1) > 0).unsqueeze(1)
        rows.append((unit.log() + 1).cpu().numpy())  # expect: nan, forward
    return np.nanmean(np.concatenate(rows))


print(evaluate([torch.randn(2, 4) for _ in range(3)]) is not None)
