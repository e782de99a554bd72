"""Functions as those in `variables`, which call others."""

# ruff: noqa: RET504, RUF059 - the lines are what is looked at

from __future__ import annotations

import torch

SCALE = torch.linspace(0.5, 2.0, 4)


def closure(x, y):
    a = x * 2

    def inner(t):
        return t * a

    b = inner(y)
    c = b.exp()
    return c


def nonlocal_binding(x, y):
    a = x * 2

    def change():
        nonlocal a
        a = y * 3

    b = a.exp()
    change()
    c = b.tanh()
    return c


def global_read(x, y):
    """a"""
    a = x * SCALE
    b = a.exp()
    return b + y


def global_of_that_name(x, y):
    z = reads_global(y)
    return z * x


x = torch.linspace(3.0, 4.0, 4)


def reads_global(t):
    return (t * x).exp()


def double(t):
    """t u"""
    u = t * 2
    return u


def helper(x, y):
    """x a b"""
    a = double(x)
    b = double(a)
    c = b + y
    return c.exp()


def helper_twice(x, y):
    a = double(x) + double(y)
    return a.exp()


def helper_nested(x, y):
    a = double(double(x))
    return a * y


def helper_in_comprehension(x, y):
    a, b = [double(t) for t in (x, y)]
    return a.exp() + b


def mutates(t):
    t.mul_(3)
    return t.sum()


def mutating_helper(x, y):
    """y"""
    a = x * 2
    b = a.exp()
    mutates(a)
    c = b + y
    return c


def pair(a, b):
    """s d"""
    s = a + b
    d = a - b
    return d, s


def helper_with_tuple(x, y):
    """s d"""
    d, s = pair(x, y)
    e = s * d
    return e.exp()


def swapped_arguments(x, y):
    a, b = pair(y, x)
    c = a.exp()
    d = b.tanh()
    return c + d


def passes_through(t, other):
    other.exp()
    return t


def helper_gives_argument(x, y):
    a = x * 2
    b = passes_through(a, y)
    c = b.exp()
    return c


def recursive(x, y, depth=2):
    z = x * y
    if depth:
        return recursive(z, y, depth - 1)
    return z.exp()


def generates(t):
    u = t * 2
    yield u
    u = u.exp()
    yield u


def generator(x, y):
    total = y * 1.5
    for part in generates(x):
        total = total + part
    return total


def loop_of_a_helper(x, y):
    for _ in range(3):
        x = double(x)
    z = x * y
    return z


def loop_of_dead_helpers(x, y):
    z = y
    for k in range(3):
        h = double(x + k)
        if k == 0:
            z = h.exp()
    return z.tanh()


def of_two(t):
    u = t * 2
    w = t.exp()
    return u, w


def loop_of_partly_dead_helpers(x, y):
    a = b = y
    for k in range(2):
        u, w = of_two(x + k)
        if k == 0:
            a = u
        else:
            b = w
    return a * b


def partly_dead(t):
    u = t * 2
    v = u.exp()
    return u, v


def calls_partly_dead(x, y):
    a, b = partly_dead(x)
    c, d = partly_dead(y)
    return a + d


def partly_dead_in_one_line(x, y):
    a = (partly_dead(x)[0], partly_dead(y)[1])
    b = a[0] * a[1]
    return b


def list_argument(parts, scale):
    u = parts[0] * scale
    parts.append(u)
    return len(parts)


def helper_with_list(x, y):
    parts = [x, y]
    n = list_argument(parts, y)
    z = parts[-1].exp()
    return z * n


def keyword_arguments(x, y):
    """s d"""
    d, s = pair(b=x, a=y)
    z = d.exp()
    w = s.tanh()
    return z + w


def default_argument(t, other=None, scale=2.0):
    if other is None:
        other = t.exp()
    w = other * scale
    return w


def defaults(x, y):
    a = default_argument(x)
    b = default_argument(x, y, scale=3.0)
    return a.tanh() + b


def lambdas(x, y):
    f = lambda t: t * 2  # noqa: E731
    a = f(x)
    b = f(a) + y
    return b.exp()


def mapped(x, y):
    a, b = map(torch.tanh, (x, y))
    c = a * b
    return c.exp()


def reused_name_in_helper(x, y):
    y = double(x)
    x = double(y)
    z = x - y
    return z


FUNCTIONS = [
    f for f in list(globals().values())
    if getattr(f, "__module__", "") == __name__ and f.__code__.co_varnames[:2] == ("x", "y")
]  # fmt: skip
