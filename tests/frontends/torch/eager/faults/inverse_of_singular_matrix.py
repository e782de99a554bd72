# Infinite loss: inverse of a singular 2x2 matrix by its adjugate
import torch
from torch import nn


class Inverse(nn.Module):
    def forward(self, m):
        a, b, c, d = m.flatten(-2).unbind(-1)
        determinant = a * d - b * c
        adjugate = torch.stack([d, -b, -c, a], -1).unflatten(-1, (2, 2))
        return adjugate / determinant[:, None, None]  # expect: inf, forward


torch.manual_seed(0)
jacobian = nn.Parameter(torch.tensor([[[2.0, 1.0], [1.0, 3.0]], [[1.0, 2.0], [2.0, 4.0]]]))
optimizer = torch.optim.SGD([jacobian], lr=0.1)
out = Inverse()(jacobian)
loss = out.square().sum()
loss.backward()
optimizer.step()
print(loss.item(), jacobian.tolist())
