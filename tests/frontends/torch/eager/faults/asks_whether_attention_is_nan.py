# NaN attention, of which the script prints whether there is one
import torch
import torch.nn.functional as F

torch.manual_seed(0)
q = torch.randn(1, 2, 6, 8)
k = torch.randn(1, 2, 10, 8)
v = torch.randn(1, 2, 10, 8)
mask = torch.ones(6, 10).tril().bool()
mask[-1] = False


def naive(q, k, v, mask, scale=0.125):
    att = (q @ k.transpose(-1, -2)) * scale
    att = torch.where(mask, att, torch.tensor(float("-inf")))
    att = torch.nn.functional.softmax(att, dim=-1)  # expect: nan, forward
    return att @ v


out = naive(q, k, v, mask)
print("naive has nan:", torch.isnan(out).any())
