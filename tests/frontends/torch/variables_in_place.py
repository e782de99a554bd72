"""Functions as those in `variables`, which change tensors in place, or have two names for one."""

# ruff: noqa: F841, RET504 - the lines are what is looked at

from __future__ import annotations

import torch


def in_place_method(x, y):
    """y a"""
    a = x * 2
    b = a.exp()
    a.mul_(2)
    c = y + 1
    return b + c


def in_place_live(x, y):
    """a b"""
    a = x * 2
    b = a + y
    a.add_(y)
    b = b * a
    return b.sum()


def subscript_store(x, y):
    """y"""
    out = torch.zeros(4, 4)
    for i in range(4):
        out[i] = x[i] * y[i]
    z = y.exp()
    return out + z


def mask_store(x, y):
    """y"""
    a = x * 2
    mask = a > 0
    a[mask] = 0
    b = y + 1
    return b * 2


def view_written(x, y):
    """y"""
    base = x * 2
    view = base[0]
    view += 5
    z = y.exp()
    return z.sum() + 0 * x.sum()


def view_live(x, y):
    base = x * 2
    view = base[0]
    view += 5
    z = base.exp()
    return z + y


def alias(x, y):
    a = x * 2
    b = a
    b.add_(1)
    c = y.exp()
    return c


def alias_rebound(x, y):
    a = x * 2
    b = a
    a = y
    c = b.exp()
    d = a.tanh()
    return c + d


def augmented(x, y):
    """y"""
    a = x * 2
    a += y
    b = a.exp()
    a *= 3
    c = y * 2
    return b + c


def augmented_argument(x, y):
    z = x * 2
    x += 1
    w = z * y
    return w


def dictionary(x, y):
    """a"""
    table = {"k": x * 5}
    table["k"] = table["k"] + 1
    a = table["k"].exp()
    b = a * y
    return b


def list_of_tensors(x, y):
    parts = [x + 1, y + 2]
    parts.append(x * y)
    z = torch.cat(parts)
    return z.exp()


def list_changed(x, y):
    parts = [x + 1]
    a = parts[0]
    parts[0].mul_(2)
    b = y.exp()
    return b


def out_argument(x, y):
    a = x * 2
    b = a.exp()
    torch.mul(x, y, out=a)
    c = b.tanh()
    return c


def copied(x, y):
    a = x * 2
    b = a.clone()
    a.mul_(2)
    c = b.exp()
    return c + y


def copied_into(x, y):
    a = x * 2
    b = y * 3
    c = y + 1
    a.copy_(b)
    d = a.exp()
    return d + c


def no_op_views(x, y):
    a = x.contiguous()
    b = a.view(4, 4)
    c = b.float()
    c.add_(1)
    d = y.exp()
    return d


def chained_assignment(x, y):
    """a b"""
    a = b = x * 2
    c = a.exp()
    a = y
    d = b + c
    return d + a


def identity_kept(x, y):
    a = x
    x = y * 2
    b = a.exp()
    c = x.tanh()
    return b + c


def data_written(x, y):
    a = x * 2
    b = a.exp()
    a.data.add_(1)
    c = y.tanh()
    return b + c


def slice_augmented(x, y):
    """y"""
    a = x * 2
    b = a.exp()
    a[0] *= 5
    c = y + 1
    return b + c


def detached_written(x, y):
    a = x * 2
    b = a.detach()
    c = a.exp()
    b.zero_()
    d = y.tanh()
    return c.sum() + d


FUNCTIONS = [
    f for f in list(globals().values())
    if getattr(f, "__module__", "") == __name__ and f.__code__.co_varnames[:2] == ("x", "y")
]  # fmt: skip
