# NaN gradient: unit embeddings by hand, where the padding token's vector is 0
import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=0)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens):
        e = self.table(tokens)
        n = e.square().sum(-1, keepdim=True) ** 0.5  # expect: inf, backward
        return self.out((e / n.clamp(min=1e-6)).mean(1))


torch.manual_seed(0)
net = Bag()
with torch.no_grad():
    net.table.weight[3] = 0.0
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.tensor([[1, 2, 3], [4, 5, 1]])).logsumexp(-1).sum().backward()
optimizer.step()
print(net.table.weight.isnan().any(-1).tolist())
