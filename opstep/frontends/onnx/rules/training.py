"""Steps of optimizers, classic learners, and counts of n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.frontends.onnx.body import Body, Var
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.onnx.values import known
from opstep.runtime.ir.types import f32, i64

TRAINING = "ai.onnx.preview.training"
CLASSIC = "ai.onnx.ml"


def _each(values: tuple[Var, ...], kinds: int) -> list[tuple[Var, ...]]:
    """Of each tensor: itself, its gradient and what is kept of it."""
    count = len(values) // kinds
    return [values[k::count] for k in range(count)]


@rule("Adagrad", domain=TRAINING)
def adagrad(b: Body, rate, step, *values, decay_factor=0.0, epsilon=0.0, norm_coefficient=0.0):
    rate = b.div(rate, b.add(b.mul(b.to(step, rate.dtype), decay_factor), 1.0))
    news, kept = [], []
    for x, g, h in _each(values, 3):
        g = b.add(b.mul(x, norm_coefficient), g)
        h = b.add(h, b.square(g))
        news.append(b.sub(x, b.div(b.mul(g, rate), b.add(b.sqrt(h), epsilon))))
        kept.append(h)
    return *news, *kept


@rule("Momentum", domain=TRAINING)
def momentum(b: Body, rate, step, *values, alpha, beta, mode, norm_coefficient):
    news, kept = [], []
    for x, g, v in _each(values, 3):
        g = b.add(b.mul(x, norm_coefficient), g)
        share = b.where(b.greater(step, 0), b.filled([], beta, x.dtype), 1.0)
        v = b.add(b.mul(v, alpha), b.mul(g, share))
        change = v if mode == "standard" else b.add(g, b.mul(v, alpha))
        news.append(b.sub(x, b.mul(change, rate)))
        kept.append(v)
    return *news, *kept


@rule("Adam", domain=TRAINING)
def adam(
    b: Body, rate, step, *values, alpha=0.9, beta=0.999, epsilon=1e-6, norm_coefficient=0.0,
    norm_coefficient_post=0.0,
):  # fmt: skip
    count = b.to(step, rate.dtype)
    ratio = b.div(b.sqrt(b.sub(1.0, b.pow(beta, count))), b.sub(1.0, b.pow(alpha, count)))
    rate = b.where(b.greater(step, 0), b.mul(rate, ratio), rate)
    news, first, second = [], [], []
    for x, g, v, h in _each(values, 4):
        g = b.add(b.mul(x, norm_coefficient), g)
        v = b.add(b.mul(v, alpha), b.mul(g, 1 - alpha))
        h = b.add(b.mul(h, beta), b.mul(b.square(g), 1 - beta))
        new = b.sub(x, b.div(b.mul(v, rate), b.add(b.sqrt(h), epsilon)))
        news.append(b.mul(new, 1 - norm_coefficient_post) if norm_coefficient_post else new)
        first.append(v)
        second.append(h)
    return *news, *first, *second


@rule("ArrayFeatureExtractor", domain=CLASSIC)
def array_feature_extractor(b: Body, x, index):
    return b.gather(x, b.reshape(index, shape=[-1]), axis=x.type.rank - 1)


@rule("Binarizer", domain=CLASSIC)
def binarizer(b: Body, x, *, threshold=0.0):
    return b.to(b.greater(x, threshold), x.dtype)


@rule("TfIdfVectorizer")
def tf_idf(
    b: Body, x, *, max_gram_length, max_skip_count, min_gram_length, mode, ngram_counts,
    ngram_indexes, pool_int64s=None, pool_strings=None, weights=None,
):  # fmt: skip
    """How often each sequence of the pool occurs in a row of x, whose members may lie apart."""
    if pool_int64s is None or not isinstance(x.shape[-1], int):
        raise Untranslatable("n-grams of texts, or in rows whose length is not known")
    rows = b.to(x if x.type.rank == 2 else b.unsqueeze(x, axes=[0]), i64)
    counts: Any = b.zeros(shape=[rows.shape[0], max(ngram_indexes) + 1])
    ends = [*ngram_counts, len(pool_int64s)]
    place = 0
    for length in range(1, len(ngram_counts) + 1):
        pool = np.array(pool_int64s[ends[length - 1] : ends[length]]).reshape(-1, length)
        indices = np.array(ngram_indexes[place : place + len(pool)])
        place += len(pool)
        if not len(pool) or not min_gram_length <= length <= max_gram_length:
            continue
        found = _occurrences(b, rows, pool, max_skip_count)
        if found is not None:
            at = np.zeros((counts.shape[1], len(pool)), np.float32)
            at[indices, np.arange(len(pool))] = 1
            counts = b.add(counts, b.linear(found, b.constant(known(at, name="ngrams_at"))))
    if mode != "TF":
        counts = b.where(b.greater(counts, 0.0), 1.0, 0.0) if mode == "IDF" else counts
        if weights is not None:
            scale = np.ones(counts.shape[1], np.float32)
            scale[list(ngram_indexes)] = weights
            counts = b.mul(counts, b.constant(known(scale, name="ngrams_weights")))
    return counts if x.type.rank == 2 else b.squeeze(counts, axes=[0])


def _occurrences(b: Body, rows: Var, pool: np.ndarray, most_skipped: int) -> Var | None:
    """How often each one occurs, [rows, pool]."""
    size, length = rows.shape[1], pool.shape[1]
    assert isinstance(size, int)
    wanted = b.constant(known(pool[:, None, :], name="ngrams"))
    found = None
    for skipped in range(most_skipped + 1 if length > 1 else 1):
        first = size - (length - 1) * (skipped + 1)
        if first <= 0:
            break
        places = np.arange(first)[:, None] + np.arange(length) * (skipped + 1)
        windows = b.gather(rows, b.constant(known(places, name="ngrams_windows")), axis=1)
        same = b.all(b.equal(b.unsqueeze(windows, axes=[1]), wanted), axes=[3])
        here = b.sum(b.to(same, f32), axes=[2])
        found = here if found is None else b.add(found, here)
    return found
