import torch
import torch.nn.functional as F
from torch import nn


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(30, 12), nn.Embedding(30, 12)
        self.target.weight = self.source.weight
        self.head = nn.Linear(12, 30)
        self.head.weight = self.source.weight
        act = nn.ReLU()
        self.mix = nn.Sequential(nn.Linear(12, 12), act, nn.Linear(12, 12), act)
        self.again = self.mix
        self.twin = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])

    def forward(self, x, y):
        h = self.mix(self.source(x)) + self.again(self.target(y))
        for layer in self.twin:
            h = h + torch.tanh(layer(h))
        return self.head(h)


torch.manual_seed(13)
model = Seq2Seq()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(10):
    x, y = torch.randint(0, 30, (2, 6, 5))
    loss = F.cross_entropy(model(x, y).transpose(1, 2), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
