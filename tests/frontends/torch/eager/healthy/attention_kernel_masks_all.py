# Healthy: scaled_dot_product_attention gives 0 for queries that may see nothing
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
lin = nn.Linear(4, 12)
optimizer = torch.optim.SGD(lin.parameters(), lr=0.1)
mask = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])
for step in range(2):
    q, k, v = lin(torch.randn(1, 2, 3, 4)).chunk(3, -1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    loss = (y - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), y[0, :, 1].abs().sum().item())
