import torch

torch.manual_seed(10)
w1 = torch.randn(4, 32, requires_grad=True)
b1 = torch.full((32,), -12.0, requires_grad=True)
w2 = torch.randn(32, 1, requires_grad=True)
b2 = torch.zeros(1, requires_grad=True)
opt = torch.optim.SGD([w1, b1, w2, b2], lr=1e-2)
for _step in range(20):
    x = torch.randn(32, 4)
    h = torch.relu(x @ w1 + b1)  # expect: dead
    loss = ((h @ w2 + b2) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.5f}")
