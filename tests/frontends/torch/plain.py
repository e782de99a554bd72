"""Small models in plain torch.nn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def split(self, x):
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x):
        query, key, value = (self.split(t) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 50, width: int = 16, heads: int = 2, layers: int = 3):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        positions = torch.arange(ids.shape[1])
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Double(nn.Sequential):
    def __init__(self, i: int, o: int):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
            nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = Double(3, 4), Double(4, 8), Double(8, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.right1, self.right2 = Double(16, 4), Double(8, 4)
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.up(self.middle(F.max_pool2d(b, 2)))
        d = self.right1(torch.cat([c, b], dim=1))
        d = F.interpolate(d, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.right2(torch.cat([d, a], dim=1)))


class Tagger(nn.Module):
    """An LSTM, with its results in a dict."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(12, 5)

    def forward(self, words):
        states, (hidden, _) = self.lstm(self.embedding(words))
        return {"tags": self.tags(states).log_softmax(-1), "hidden": hidden}


class Counter(nn.Module):
    """Buffers that a run updates."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen.add_(x.shape[0])
        return self.norm(x)


class Mixed(nn.Module):
    """Arguments by name, nested, and without a tensor."""

    def forward(self, pair, *, scale, power=2, mask=None):
        a, b = pair["a"], pair["b"]
        total = (a * b * scale) ** power
        return total if mask is None else total.masked_fill(mask, 0.0)


def image() -> tuple:
    return (torch.randn(2, 3, 16, 16),)


def words() -> tuple:
    return (torch.randint(1, 20, (2, 7)),)


class Mean(nn.Module):
    """Uses its second argument first."""

    def forward(self, states, mask):
        count = mask.sum()
        return (states * mask).sum() / count


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = Mean()

    def forward(self, x):
        mask = (x > 0).float()
        return self.mean(x * 2, mask)
