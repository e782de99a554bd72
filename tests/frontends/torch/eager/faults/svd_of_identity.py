# NaN gradient: singular vectors of a matrix with equal singular values
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.eye(3))
optimizer = torch.optim.SGD([w], lr=0.01)
basis = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 10.0]])
u, s, vh = torch.linalg.svd(w)  # expect: nan, backward
projected = u[:, :2].T.abs() @ basis
loss = projected.sum() + s.sum()
loss.backward()
optimizer.step()
print(w.tolist())
