"""Neighbours of an array as a tuple: what a vector store of a kernel is given."""

from __future__ import annotations


def one(values, i):
    return (values[i],)


def two(values, i):
    return values[i], values[i + 1]


def four(values, i):
    return values[i], values[i + 1], values[i + 2], values[i + 3]


def eight(values, i):
    return (
        values[i], values[i + 1], values[i + 2], values[i + 3],
        values[i + 4], values[i + 5], values[i + 6], values[i + 7],
    )  # fmt: skip


# by how many, functions that give neighbours of an array as a tuple
GATHERED = {1: one, 2: two, 4: four, 8: eight}
