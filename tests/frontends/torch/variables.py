"""Functions of two tensors [4, 4] whose variables a debugger shows.

The names that have to be shown somewhere in one stand in its docstring.
"""

# ruff: noqa: RET504 - the lines are what is looked at

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F


def straight(x, y):
    """x y a b c d"""
    a = x * 2
    b = a + y
    c = torch.tanh(b)
    d = c.exp()
    return d.sum()


def used_together(x, y):
    """a b c d"""
    a = x.exp()
    b = y.tanh()
    c = x * y
    d = torch.sin(c)
    return a + b + c + d


def dead_rebinding(x, y):
    """a b"""
    a = x * 2
    b = torch.relu(a)
    a = b * 0 - 7
    c = b + 1
    return c * y


def dead_value(x, y):
    """a"""
    a = x * 2
    unused = a * 3
    a = a + y
    unused = unused + 1
    return a.exp()


def swap(x, y):
    """r"""
    p = x * 2
    q = y * 3
    p, q = q, p
    r = p - q
    return r.exp()


def swap_used(x, y):
    """r"""
    p, q = x * 2, y * 3
    p, q = q, p
    r = p.exp()
    s = q.tanh()
    return r + s


def nested_unpacking(x, y):
    """d"""
    a, (b, c) = x * 2, (y * 3, x + y)
    d = a * b
    e = d - c
    return e.exp()


def flat_unpacking(x, y):
    """a b c"""
    a, b = x.chunk(2, dim=-1)
    c = a * b
    d = c.exp()
    return d.sum() + y.sum()


def star_unpacking(x, y):
    first, *rest = x.unbind(0)
    z = first * rest[0]
    return z.exp() + y[0]


def one_of_a_chunk(x, y):
    """b"""
    a = x.chunk(2)
    b = a[0] * 2
    c = b.exp()
    return c.sum() + y


def loop(x, y):
    """h"""
    h = x
    for k in range(3):
        h = h * (k + 1)
    z = h.exp()
    return z + y


def loop_of_lines(x, y):
    """t"""
    h = x * 1.5
    for _ in range(3):
        t = h.tanh()
        u = t + y
        h = u * 2
    return h.sum()


def loop_with_dead_turns(x, y):
    keep = y * 2
    for k in range(3):
        h = x + k
        if k == 1:
            keep = h.exp()
    z = keep.tanh()
    return z + y


def loop_over_tensors(x, y):
    total = x * 0
    for t in (x, y, x):
        s = t.exp()
        total = total + s
    return total.tanh()


def while_loop(x, y):
    k = 0
    while k < 3:
        x = x.tanh()
        k += 1
    return x * y


def broken_loop(x, y):
    for k in range(5):
        z = x * k
        if k == 2:
            break
    else:
        z = y * 2
    w = z.exp()
    return w


def branches(x, y, flag=True):
    """a c"""
    a = x * 2
    if flag:
        b = a.exp()
    else:
        b = y
    c = b.tanh()
    return c + 1


def branch_without_ops(x, y, flag=True):
    a = x * 2
    b = a.exp()
    if flag:
        a = y
    c = b.tanh()
    return c + a


def conditional_expression(x, y, flag=False):
    a = x.exp() if flag else y.tanh()
    b = a * 2
    return b.sum()


def list_comprehension(x, y):
    """z"""
    parts = [t * 2 for t in (x, y)]
    z = parts[0] + parts[1]
    w = z.exp()
    return w


def generator_expression(x, y):
    e, f = (t.relu() for t in (x, y))
    g = e * f
    return g.exp()


def summed(x, y):
    z = sum(t.exp() for t in (x, y))
    return z.tanh()


def shadowing(x, y):
    """x"""
    x = x * 2
    x = x.exp()
    x = x + y
    return x.sum()


def shadowed_in_comprehension(x, y):
    a = x * 2
    b = [a * 3 for a in (y, y.exp())]
    c = a + b[1]
    return c


def walrus(x, y):
    if (a := x * 2) is not None:
        b = a + y
    c = (a := b * 3).exp()
    return c + a


def with_block(x, y):
    """a"""
    a = x * 2
    with nullcontext():
        b = a.exp()
        a = b + y
    c = a.tanh()
    return c


def try_block(x, y):
    a = x * 2
    try:
        b = a.exp()
        a = y
        raise ValueError
    except ValueError:
        c = b.tanh()
    finally:
        d = c * 2
    return d + a


def deleted(x, y):
    a = x * 2
    b = a.exp()
    del a
    c = b + y
    return c.tanh()


def transposed(x, y):
    """a"""
    a = x * 2
    b = a.t()
    c = b @ y
    d = y @ b
    return c.exp() + d


def expanded(x, y):
    row = x[0]
    wide = row.expand(4, 4)
    a = wide + y
    b = row * y
    return a + b


def reductions(x, y):
    """m s"""
    m = x.mean(dim=-1, keepdim=True)
    s = (x - m).pow(2).sum(-1)
    best = torch.max(y, 1)[0]
    worst = y.min(dim=1)
    t = s * best
    return t + worst.values


def numbers(x, y):
    """a"""
    n = x.shape[0]
    n = n * 2
    a = x * n
    b = a.exp()
    return b + y


def in_two_lines(x, y):
    """x y a"""
    a = x * 2 + y.exp()
    b = a.tanh()
    c = b * 2
    d = c + a
    return d


def one_line_if(x, y, flag=True):
    a = x * 2
    if flag:
        a = y * 3
    b = a.exp()
    return b


def conversions(x, y):
    i = (x * 4).long()
    f = i.float()
    a = f * y
    g = a.to(torch.float64)
    return g.exp()


def indexed(x, y):
    k = x.argmax(-1)
    a = y.gather(1, k[:, None])
    b = F.softmax(a, 0)
    z = torch.where(x > 0, x, y)
    return b * z


def zipped(x, y):
    out = []
    for a, b in zip((x, y), (y, x), strict=True):
        c = a - b
        out.append(c.exp())
    return torch.stack(out)


def matched_pattern(x, y):
    a = x * 2
    match a.dim():
        case 2:
            b = a.exp()
        case other:
            b = y * other
    c = b + y
    return c


def chained_comparison(x, y):
    """a b"""
    a = x > y
    b = x * a
    c = b.exp()
    return c


def minus_itself(x, y):
    a = x - y
    a, x = x, a
    b = a * 2
    c = x * 2
    d = b - c
    return d


def zero_dimensional(x, y):
    """s t"""
    s = x.sum()
    t = s * 2
    u = t * y
    return u


def integers(x, y):
    """k"""
    k = x.argmax(-1)
    m = k * 2
    return y * m


def nested_calls(x, y):
    """a b"""
    a = torch.relu(torch.tanh(x * 2) - y.exp())
    b = F.gelu(a @ y) * (x + 1)
    return b.sum(-1)


FUNCTIONS = [
    f for f in list(globals().values())
    if getattr(f, "__module__", "") == __name__ and f.__code__.co_varnames[:2] == ("x", "y")
]  # fmt: skip
