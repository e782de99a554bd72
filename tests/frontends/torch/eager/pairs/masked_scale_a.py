import math

import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.weight = nn.Parameter(torch.randn(d, d) * 0.1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])  # expect
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = scores.masked_fill(mask, -1e9)
        p = torch.softmax(scores, dim=-1)
        return p @ v @ self.weight


class Block(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(d), Attention(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        h = torch.relu(self.up(x))
        return x + self.down(h)


model = nn.Sequential(nn.Embedding(10, 16), Block(), Block(), nn.Linear(16, 10))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)
loss_of = nn.CrossEntropyLoss()
for _ in range(3):
    ids = torch.randint(0, 10, (4, 10))
    logits = model(ids[:, :-1])
    loss = loss_of(logits.flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
