# Healthy: dynamic time warping, the border of the table is inf
import torch

torch.manual_seed(0)
a = torch.nn.Parameter(torch.randn(5))
b = torch.randn(4)
optimizer = torch.optim.SGD([a], lr=0.1)
inf = torch.tensor(float("inf"))
for step in range(3):
    table = [[inf] * 5 for _ in range(6)]
    table[0][0] = torch.tensor(0.0)
    for i in range(1, 6):
        for j in range(1, 5):
            before = torch.stack([table[i - 1][j], table[i][j - 1], table[i - 1][j - 1]])
            table[i][j] = (a[i - 1] - b[j - 1]).abs() + before.min()
    loss = table[5][4]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
