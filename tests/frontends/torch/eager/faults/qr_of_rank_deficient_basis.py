# NaN gradient: QR of a basis whose columns depend on each other
import torch

torch.manual_seed(0)
basis = torch.nn.Parameter(torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
optimizer = torch.optim.SGD([basis], lr=0.1)
x = torch.randn(5, 3)
for step in range(2):
    q, r = torch.linalg.qr(basis)  # expect: inf, backward
    code = x @ q
    loss = (code @ q.T - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, basis.isnan().any().item())
