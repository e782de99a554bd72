# F1 of a class that nothing was predicted for: no epoch is ever better
import torch

best = torch.tensor(0.0)
for epoch in range(3):
    hits = torch.tensor(float(epoch))
    wrong, missed = torch.tensor(0.0), torch.tensor(0.0)
    f1 = 2 * hits / (2 * hits + wrong + missed)  # expect: nan, forward
    if f1 > best:
        best = f1
        print("better in", epoch)
