import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 16)
out = nn.Linear(16, 1)
params = [*net.parameters(), *out.parameters()]
opt = torch.optim.SGD(params, lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
mask = torch.rand(16, 4) > 0.1
for _k in range(10):
    x = torch.randn(8, 4)
    h = net(x)
    h = h.clamp(min=torch.zeros(16), max=torch.ones(16)) + torch.clamp(h, max=3.0)
    loss = (out(h) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    net.weight.grad.mul_(mask)
    net.weight.grad *= 0.5
    torch._foreach_mul_([p.grad for p in params], [1.0, 1.0, 1.0, 2.0])
    torch._foreach_div_([p.grad for p in params], 2.0)
    scaler.step(opt)
    scaler.update()
print(f"{loss:.4f}")
sparse = nn.Embedding(10, 4, sparse=True)
s = torch.optim.SparseAdam(sparse.parameters())
for _k in range(6):
    loss = sparse(torch.tensor([1, 2])).pow(2).sum()
    s.zero_grad()
    loss.backward()
    s.step()
w = torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)
o = torch.optim.SGD([w], lr=0.1)
for _k in range(25):
    loss = w.abs().sum()
    o.zero_grad()
    loss.backward()
    o.step()
e = nn.Embedding(5, 3)
y = e(torch.empty(0, dtype=torch.long))
nn.functional.cross_entropy(y, torch.empty(0, dtype=torch.long), reduction="sum").backward()
nn.functional.binary_cross_entropy(torch.empty(0, 1), torch.empty(0, 1), reduction="sum")
print(f"{loss:.4f}")
