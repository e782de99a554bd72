"""Functions of one float that kernels call. Plainly written here."""

from __future__ import annotations

import math

import numpy as np


def exp(x):
    return math.exp(x)


def expm1(x):
    return math.expm1(x)


def log(x):
    return math.log(x)


def log1p(x):
    return math.log1p(x)


def tanh(x):
    return math.tanh(x)


def sigmoid(x):
    e = math.exp(-np.abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


def erf(x):
    return math.erf(x)


def sin(x):
    return math.sin(x)


def cos(x):
    return math.cos(x)


def pow(x, y):
    return math.pow(x, y)


def exp2(x):
    return math.pow(2.0, x)


def log2(x):
    return math.log2(x)
