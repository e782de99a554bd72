# NaN loss: a Cholesky factorisation by hand of an indefinite matrix
import torch


def cholesky(a):
    n = a.shape[0]
    rows = [[None] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            s = a[i, j] - sum(rows[i][k] * rows[j][k] for k in range(j))
            if i == j:
                rows[i][j] = s**0.5  # expect: nan, forward
            else:
                rows[i][j] = s / rows[j][j]
    return rows


torch.manual_seed(0)
a = torch.nn.Parameter(torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
rows = cholesky(a)
loss = sum(rows[i][i].log() for i in range(3))
loss.backward()
torch.optim.SGD([a], lr=0.1).step()
print(loss.item())
