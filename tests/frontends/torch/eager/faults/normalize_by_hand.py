# NaN gradient: a zero vector is divided by its length, with epsilon outside of the root
import torch


def normalize(v, eps=1e-8):
    length = torch.sqrt((v * v).sum(-1, keepdim=True))  # expect: nan, backward
    return v / (length + eps)


torch.manual_seed(0)
table = torch.nn.Parameter(torch.randn(5, 3))
with torch.no_grad():
    table[2] = 0
optimizer = torch.optim.Adam([table], lr=0.01)
loss = normalize(table).mul(torch.randn(5, 3)).sum()
loss.backward()
optimizer.step()
print(table[2].tolist())
