# Healthy: sparse gradients of an embedding, with SparseAdam
import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(10, 3, sparse=True)
bag = nn.EmbeddingBag(10, 3, mode="max")
sparse = torch.optim.SparseAdam(table.parameters(), lr=0.1)
dense = torch.optim.Adagrad(bag.parameters(), lr=0.1)
for step in range(3):
    words = torch.randint(0, 10, (4, 2))
    loss = table(words).square().mean() + bag(words).square().mean()
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    print(step, loss.item(), table.weight.grad.coalesce().values().sum().item())
