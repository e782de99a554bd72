# NaN weights of a masked row, which the script counts
import torch


def attn(q, m):
    s = (q @ q.t()).masked_fill(m, float("-inf"))
    return s.softmax(-1)  # expect: nan, forward


torch.manual_seed(0)
out = attn(torch.randn(3, 4), torch.tensor([[True] * 3, [False] * 3, [False] * 3]))
count = torch.isnan(out).sum().item()
print(f"{count} NaNs")
