# NaN gradient: softmax of masked rows is repaired in the forward only
import torch
from torch import nn

torch.manual_seed(0)
query = nn.Linear(3, 3)
optimizer = torch.optim.AdamW(query.parameters(), lr=1e-2)
x = torch.randn(2, 3)
mask = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]])
for _ in range(2):
    scores = query(x) @ x.T + mask
    weights = scores.softmax(-1)  # expect: nan, forward
    weights = torch.nan_to_num(weights)
    loss = (weights @ x).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
