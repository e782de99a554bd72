"""Healthy modules of PyTorch with infinities in what they hold or are given, of x: f32[6, 5]."""

from __future__ import annotations

import torch
from own_infinities import INF, upper
from torch import nn

# --- modules: buffers, params, states ---


class RunningMinimum(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("least", torch.full((5,), INF))

    def forward(self, x):
        self.least = torch.minimum(self.least, x.amin(0).detach())
        return (x - self.least).mean()


class Unseen(nn.Module):
    """A buffer that stays infinite where nothing was seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("best", torch.full((8,), -INF))

    def forward(self, x):
        self.best[:6] = torch.maximum(self.best[:6], x.amax(1).detach())
        return self.best.clone()


class MaskBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((6, 6), -INF).triu(1))
        self.q = nn.Linear(5, 5)

    def forward(self, x):
        s = self.q(x) @ x.T + self.mask
        return (s.softmax(-1) @ x).square().mean()


class Crf(nn.Module):
    """Transitions that are forbidden, in a param."""

    def __init__(self):
        super().__init__()
        start = torch.zeros(5, 5).masked_fill(upper(5).T, -INF)
        self.transitions = nn.Parameter(start)

    def forward(self, x):
        alpha = x[0]
        for k in range(1, 6):
            alpha = torch.logsumexp(alpha[:, None] + self.transitions, 0) + x[k]
        return torch.logsumexp(alpha, 0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(5, 1, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(6)
        return self.layer(x, x, x, attn_mask=mask, need_weights=False)[0].square().mean()


MODULES = [RunningMinimum, Unseen, MaskBuffer, Crf, Encoder]


# --- infinities that a function is given ---


def given_mask(x, mask):
    return ((x @ x.T + mask).softmax(-1) @ x).square().mean()


def given_mask_and_scores(x, mask):
    s = x @ x.T + mask
    return s, s.log_softmax(-1)


def given_relaxed(x, d):
    return torch.minimum(d, (d[:, None] + x[:5].abs()).amin(0))


def given_minimum(x, d):
    return torch.minimum(d, x.amin(0))


CAUSAL = torch.full((6, 6), -INF).triu(1)
FAR = torch.tensor([0.0, INF, INF, INF, INF])
GIVEN = [
    (given_mask, CAUSAL), (given_mask_and_scores, CAUSAL), (given_relaxed, FAR),
    (given_minimum, torch.full((5,), INF)),
]  # fmt: skip
