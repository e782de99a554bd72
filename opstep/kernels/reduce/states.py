"""States of folds, numbers or pairs of numbers, in memory: pairs lie in two arrays."""

from __future__ import annotations


def _put_one(first, second, i, state):
    first[i] = state


def _put_two(first, second, i, state):
    first[i], second[i] = state


def _get_one(first, second, i):
    return first[i]


def _get_two(first, second, i):
    return first[i], second[i]


PUT, GET = (_put_one, _put_two), (_get_one, _get_two)  # by whether states are pairs
