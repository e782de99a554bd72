# NaN loss: the heads' losses are in a list comprehension, one head is certain
import torch
from torch import nn

torch.manual_seed(0)
heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
heads[1].bias.data = torch.tensor([500.0, -500.0])
optimizer = torch.optim.SGD(heads.parameters(), lr=0.1)
x = torch.randn(5, 2)
probs = [head(x).softmax(-1) for head in heads]
logs = [p.clamp(max=0.999).log() for p in probs]  # expect: inf, forward
entropies = [-(p * log).sum(-1).mean() for p, log in zip(probs, logs)]
loss = sum(entropies)
loss.backward()
optimizer.step()
print(loss.item())
