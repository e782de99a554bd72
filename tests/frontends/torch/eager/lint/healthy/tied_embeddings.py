import torch
import torch.nn.functional as F
from torch import nn


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


torch.manual_seed(12)
model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _step in range(25):
    x = torch.randint(0, 40, (8, 12))
    labels = x.roll(-1, 1).clone()
    labels[:, -1] = -100
    labels[0] = -100
    loss = F.cross_entropy(model(x).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
