# NaN stands for what a table lacks: it is shown, saved, and left out of means
import io

import torch

table = torch.tensor([[1.0, float("nan")], [float("nan"), 4.0], [5.0, 6.0]])
print(table)
mean = table.nanmean(0)
filled = torch.where(table.isnan(), mean, table)
print(mean, filled.tolist(), table.numpy().shape)
scores = torch.zeros(2, 3).masked_fill(torch.tensor([True, False, False]), float("-inf"))
print(scores, scores.softmax(-1))
torch.save({"table": table, "scores": scores}, io.BytesIO())
best = torch.tensor(float("inf"))
for loss in (2.0, 1.0):
    best = torch.minimum(best, torch.tensor(loss))
print(repr(best), best.numpy())
