"""Modules as the functions in `variables`; and functions whose gradients are looked at."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Layers(nn.Module):
    """h x y hidden"""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.act = nn.LayerNorm(4), nn.ReLU(inplace=True)

    def forward(self, x, y):
        h = self.norm(x)
        hidden = self.first(h)
        a = torch.tanh(hidden)
        b = self.second(a)
        c = self.act(b)
        d = c + b
        return d * y


class DeadActivation(nn.Module):
    """h"""

    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x, y):
        h = self.first(x)
        g = h.exp()
        self.act(h)
        z = g + y
        return z.tanh()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, u, v=None):
        r = self.fc(u)
        r = F.gelu(r)
        return u + r


class Blocks(nn.Module):
    """x r u"""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), nn.Identity(), Block()])

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        z = x + y
        return z.exp()


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x, y):
        h = self.attention(x[None], y[None], y[None], need_weights=False)
        z = h[0] * 2
        return z.exp()


class Swaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Crossed()

    def forward(self, x, y):
        a = self.inner(y, x)
        b = self.inner(x * 2, y)
        return a + b


class Crossed(nn.Module):
    def forward(self, x, y):
        p = x.exp()
        q = p - y
        return q.tanh()


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = None

    def forward(self, x, y):
        self.state = x * 2
        h = self.state.exp()
        self.state = h + y
        self.n = 3
        z = self.state * self.n
        return z.tanh()


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, t, k=0):
        u = self.fc(t)
        w = t.tanh()
        if k:
            return w * 2
        return u * 3


class CallsSeveralTimes(nn.Module):
    """z"""

    def __init__(self):
        super().__init__()
        self.one, self.two = Chooses(), Chooses()
        self.blocks = nn.ModuleList([Chooses(), Chooses(), Chooses()])

    def forward(self, x, y):
        a = self.one(x) * self.one(y, 1)
        b = self.two(self.one(a))
        for k, block in enumerate(self.blocks):
            b = block(b, k)
        for k in range(2):
            b = self.two(b, k)
        z = b * a
        return z.tanh()


class Unpacks(nn.Module):
    """x y"""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def both(self, a):
        a = self.a(a)
        return a, a * 2

    def forward(self, x, y):
        x, y = self.both(x)
        x, y = self.both(y)
        y, x = self.both(x + y)
        z = x * y
        return z.tanh()


class InPlaceResidual(nn.Module):
    """out"""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x, y):
        identity = x
        out = self.conv(x)
        out = self.norm(out[None])[0]
        out += identity
        out = F.relu(out, inplace=True)
        return out * y


def branching(x, y):
    """a b c d"""
    a = torch.tanh(x * y)
    b = torch.exp(a)
    c = torch.sin(b * a)
    d = torch.sigmoid(c / 2 + b)
    return (d * c).sum(-1)


def reused(x, y):
    """h g"""
    h = x @ y
    g = torch.relu(h)
    h = g * g + h
    h = F.softmax(h, -1)
    return h.log() * g


def views_of_one(x, y):
    """h k"""
    h = torch.exp(x)
    k = h.t().reshape(2, 8)
    p, q = k.chunk(2)
    return (p.tanh() * q).sum() + y.exp()


class Perceptron(nn.Module):
    """hidden score"""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x, y):
        hidden = torch.relu(self.a(x))
        score = self.b(hidden)
        return score.pow(2).sum(-1) * y[0, 0]


class Residual(nn.Module):
    """r z"""

    def __init__(self):
        super().__init__()
        self.blocks, self.norm = nn.ModuleList([Block(), Block()]), nn.LayerNorm(4)

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        z = self.norm(x)
        w = z * y
        return w.exp()


MODULES = [
    Layers, DeadActivation, Blocks, Attends, Swaps, Keeps, CallsSeveralTimes, Unpacks,
    InPlaceResidual,
]  # fmt: skip
DIFFERENTIATED = [branching, reused, views_of_one, Perceptron, Residual]
