"""Healthy functions of PyTorch that write infinities themselves: of x: f32[6, 5]. What gives one
number is a loss, whose gradient is finite; of others only the results are looked at.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

INF = math.inf
LABELS = torch.tensor([0, 3, 1, 2, 4, 0])


def upper(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


# --- attention and its masks ---


def attention_masked_fill(x):
    s = (x @ x.T).masked_fill(upper(6), -INF)
    return (s.softmax(-1) @ x).square().mean()


def attention_added_triu(x):
    mask = torch.full((6, 6), -INF).triu(1)
    return ((x @ x.T / 5**0.5 + mask).softmax(-1) @ x).square().mean()


def attention_where(x):
    s = torch.where(upper(6), -INF, x @ x.T)
    return (s.softmax(-1) @ x).abs().sum()


def attention_sdpa_bool_mask(x):
    q = x.reshape(1, 1, 6, 5)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=~upper(6)).square().sum()


def attention_sdpa_float_mask(x):
    q, mask = x.reshape(1, 1, 6, 5), torch.zeros(6, 6).masked_fill(upper(6), -INF)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask).square().sum()


def attention_sdpa_causal(x):
    q = x.reshape(1, 1, 6, 5)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True).square().sum()


def attention_sliding_window(x):
    i = torch.arange(6)
    far = (i[:, None] - i[None, :]).abs() > 1
    return ((x @ x.T).masked_fill(far, -INF).softmax(-1) @ x).square().mean()


def attention_alibi(x):
    i = torch.arange(6.0)
    bias = -0.5 * (i[:, None] - i[None, :]).abs()
    bias = bias.masked_fill(upper(6), -INF)
    return ((x @ x.T + bias).softmax(-1) @ x).square().mean()


def attention_t5_bias_and_padding(x):
    padding = torch.zeros(6).index_fill(0, torch.tensor([4, 5]), -INF)
    bias = torch.linspace(-1, 1, 36).reshape(6, 6) + padding
    return ((x @ x.T + bias).softmax(-1) @ x).square().mean()


def attention_padding_outer(x):
    there = torch.tensor([1, 1, 1, 1, 0, 0], dtype=torch.bool)
    s = (x @ x.T).masked_fill(~there[None, :], -INF)
    return ((s.softmax(-1) @ x) * there[:, None]).sum()


def attention_probabilities_and_scores(x):
    s = (x @ x.T).masked_fill(upper(6), -INF)
    return s, s.softmax(-1)


def attention_masked_rows_to_zero(x):
    s = (x @ x.T).masked_fill(upper(6).T.tril(-3), -INF)
    return torch.nan_to_num(s.softmax(-1)) @ x


def attention_transformer_mask(x):
    return nn.Transformer.generate_square_subsequent_mask(6) + x @ x.T


def attention_finfo(x):
    low = torch.finfo(torch.float32).min
    s = torch.clamp_min((x @ x.T).masked_fill(upper(6), -INF), low)
    return (s.softmax(-1) @ x).square().mean()


def attention_mask_by_log(x):
    seen = (~upper(6)).float()
    return ((x @ x.T + seen.log()).softmax(-1) @ x).square().mean()


def attention_logsumexp_and_weights(x):
    s = (x @ x.T).masked_fill(upper(6), -INF)
    lse = s.logsumexp(-1, keepdim=True)
    return ((s - lse).exp() @ x).square().mean()


def attention_online_softmax(x):
    m, total, out = torch.full((6, 1), -INF), torch.zeros(6, 1), torch.zeros(6, 5)
    for part in x.split(2):
        s = x @ part.T
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, old = (s - new).exp(), (m - new).exp()
        total, out, m = total * old + p.sum(-1, keepdim=True), out * old + p @ part, new
    return (out / total).square().mean()


# --- losses ---


def loss_simclr(x):
    z = F.normalize(x, dim=1)
    s = (z @ z.T / 0.1).masked_fill(torch.eye(6, dtype=torch.bool), -INF)
    return F.cross_entropy(s, torch.arange(6).roll(3))


def loss_fill_diagonal(x):
    s = x @ x.T
    s = s - torch.diag_embed(s.diagonal())
    s.fill_diagonal_(-INF)
    return F.cross_entropy(s, torch.arange(6).roll(1))


def loss_banned_class(x):
    logits = x * 2
    logits[:, 4] = -INF
    return F.cross_entropy(logits, LABELS.clamp(max=3))


def loss_banned_classes_by_index(x):
    logits = x.index_fill(1, torch.tensor([2, 4]), -INF)
    return F.cross_entropy(logits, torch.tensor([0, 1, 3, 0, 1, 3]))


def loss_policy(x):
    legal = torch.tensor([True, True, False, True, True])
    logp = x.masked_fill(~legal, -INF).log_softmax(-1)
    return -logp[:, 1].mean()


def loss_policy_entropy(x):
    legal = torch.tensor([True, True, False, True, True])
    logp = x.masked_fill(~legal, -INF).log_softmax(-1)
    p = logp.exp()
    return -(p * logp.masked_fill(~legal, 0.0)).sum(-1).mean()


def loss_masked_pool(x):
    return torch.logsumexp(x.masked_fill(x < 0, -INF), 1).clamp(min=-5).mean()


def loss_ignored_labels(x):
    labels = LABELS.clone()
    labels[2:] = -100
    logits = torch.where(torch.arange(5) == 4, -INF, x)
    return F.cross_entropy(logits, labels.clamp(max=3), ignore_index=-100)


def loss_masked_max_pool(x):
    there = torch.arange(6)[:, None] < 4
    return x.masked_fill(~there, -INF).amax(0).square().sum()


def loss_hard_triplet(x):
    d = (x[:, None] - x[None]).square().sum(-1) + 1e-6
    same = LABELS[:, None] == LABELS[None]
    positive = d.masked_fill(~same, -INF).amax(1)
    negative = d.masked_fill(same, INF).amin(1)
    return F.relu(positive - negative + 1).mean()


def loss_nearest(x):
    best = torch.full((6,), INF)
    for c in (0.0, 1.0, -1.0):
        best = torch.minimum(best, (x - c).square().sum(1))
    return best.mean()


def loss_chamfer(x):
    d = torch.cdist(x[:3], x[3:])
    d = torch.cat([d, torch.full((3, 1), INF)], 1)
    return d.amin(1).mean()


def loss_listnet(x):
    there = torch.tensor([True, True, True, False, False])
    a = x.masked_fill(~there, -INF).softmax(-1)
    b = (-x).masked_fill(~there, -INF).log_softmax(-1).masked_fill(~there, 0.0)
    return -(a * b).sum(-1).mean()


def loss_infonce_queue(x):
    z = F.normalize(x, dim=1)
    s = torch.cat([(z * z.roll(1, 0)).sum(1, keepdim=True), z @ z.T], 1)
    mask = F.pad(torch.eye(6, dtype=torch.bool), (1, 0))
    return F.cross_entropy(s.masked_fill(mask, -INF), torch.zeros(6, dtype=torch.int64))


def loss_logaddexp(x):
    return torch.logaddexp(x, torch.full_like(x, -INF)).square().mean()


def loss_start_of_alpha(x):
    alpha = torch.full((5,), -INF)
    alpha[0] = 0.0
    return torch.logsumexp(alpha + x, 1).mean()


# --- sampling and search ---


def sample_top_k(x):
    kth = x.topk(3, -1).values[..., -1:]
    logits = torch.where(x < kth, -INF, x)
    return logits, logits.softmax(-1)


def sample_top_p(x):
    s, i = x.sort(-1, descending=True)
    out = s.softmax(-1).cumsum(-1) > 0.8
    out = torch.cat([torch.zeros(6, 1, dtype=torch.bool), out[:, :-1]], 1)
    return torch.full_like(x, -INF).scatter(-1, i, s.masked_fill(out, -INF))


def sample_min_length(x):
    logits = x.clone()
    logits[:, 0] = -INF
    return logits.log_softmax(-1)


def sample_no_repeat(x):
    return x.scatter(1, LABELS[:, None], -INF)


def sample_log_of_probabilities(x):
    return x.masked_fill(torch.arange(5) == 2, -INF).softmax(-1).log()


def sample_bias_of_banned(x):
    bias = torch.zeros(5)
    bias[[1, 3]] = -INF
    return x + bias


def search_beams(x):
    scores = torch.tensor([0.0, -INF, -INF])
    for k in range(3):
        total = scores[:, None] + x[k].log_softmax(-1)
        scores, at = total.flatten().topk(3)
    return scores, at % 5


def search_first_beams(x):
    scores = torch.tensor([0.0, -INF, -INF, -INF])
    return scores[:, None] + x[:4].log_softmax(-1)


def search_viterbi(x):
    transitions = torch.zeros(5, 5).masked_fill(upper(5).T, -INF)
    score = torch.tensor([0.0, -INF, -INF, -INF, -INF]) + x[0]
    backs = []
    for k in range(1, 6):
        score, back = (score[:, None] + transitions).max(0)
        score = score + x[k]
        backs.append(back)
    return score, torch.stack(backs)


def search_ctc(x):
    logp = x.log_softmax(-1)
    alpha = torch.cat([logp[0, :2], torch.full((3,), -INF)])
    for k in range(1, 6):
        shifted = torch.cat([torch.tensor([-INF]), alpha[:-1]])
        alpha = torch.logaddexp(alpha, shifted) + logp[k]
    return alpha, torch.logsumexp(alpha, 0)


def search_forward_algorithm(x):
    transitions = torch.zeros(5, 5).masked_fill(upper(5).T, -INF)
    alpha = torch.tensor([0.0, -INF, -INF, -INF, -INF])
    for k in range(6):
        alpha = torch.logsumexp(alpha[:, None] + transitions, 0) + x[k]
    return torch.logsumexp(alpha, 0)


def search_dtw(x):
    cost = (x[0][:, None] - x[1][None]).abs()
    table = torch.full((6, 6), INF)
    table[0, 0] = 0.0
    for i in range(1, 4):
        for j in range(1, 4):
            least = torch.stack([table[i - 1, j], table[i, j - 1], table[i - 1, j - 1]]).min()
            table[i, j] = cost[i - 1, j - 1] + least
    return table, table[3, 3]


def search_min_plus(x):
    a = torch.where(x[:5] > 0, x[:5], INF)
    return (a[:, :, None] + a[None]).amin(1)


def search_bellman_ford(x):
    weights = torch.where(x[:5] > 0.5, x[:5], INF)
    d = torch.full((5,), INF)
    d[0] = 0.0
    for _ in range(4):
        d = torch.minimum(d, (d[:, None] + weights).amin(0))
    return d


def search_alpha_beta(x):
    alpha, beta = torch.tensor(-INF), torch.tensor(INF)
    for row in x:
        alpha = torch.maximum(alpha, row.min())
        beta = torch.minimum(beta, row.max())
    return alpha, beta


def search_nms(x):
    scores, kept = x[:, 0], []
    for _ in range(3):
        k = scores.argmax()
        kept.append(k)
        scores = scores.masked_fill(torch.arange(6) == k, -INF)
    return torch.stack(kept), scores


def search_farthest_points(x):
    d, at = torch.full((6,), INF), torch.zeros((), dtype=torch.int64)
    for _ in range(3):
        d = torch.minimum(d, (x - x[at]).square().sum(1))
        at = d.argmax()
    return d


def search_knn(x):
    d = torch.cdist(x, x).clone()
    d.fill_diagonal_(INF)
    return d.topk(2, largest=False)


def search_assignment(x):
    cost, picked = x.clone(), []
    for k in range(3):
        j = cost[k].argmin()
        picked.append(j)
        cost = cost.index_fill(1, j[None], INF)
    return torch.stack(picked), cost


# --- sorts, extremes, running states ---


def extreme_of_padded(x):
    return F.pad(x, (0, 2), value=-INF).sort(-1, descending=True).values


def extreme_running(x):
    return torch.cat([torch.full((1, 5), -INF), x]).cummax(0).values


def extreme_initial_of_where(x):
    return x.where(x > 0, torch.tensor(INF)).amin(0)


def extreme_masked_argmax(x):
    return x.masked_fill(x > 1, -INF).argmax(-1)


def extreme_max_pool_padding(x):
    return F.max_pool1d(x[None], 3, stride=1, padding=1).square().mean()


def extreme_clamp(x):
    return x.clamp(min=-INF, max=INF).square().mean()


def extreme_cumulative_logsumexp(x):
    return torch.logcumsumexp(F.pad(x, (1, 0), value=-INF), 1)


def extreme_cumsum_of_mask(x):
    return (x + torch.tensor([0.0, 0, 0, -INF, 0])).cumsum(1)


def extreme_bucket_limits(x):
    limits = torch.tensor([-INF, -1.0, 0.0, 1.0, INF])
    return torch.bucketize(x, limits), limits


def extreme_segment_max(x):
    return torch.full((4, 5), -INF).index_reduce(0, LABELS.clamp(max=2), x, "amax")


def extreme_scatter_reduce(x):
    at = LABELS.clamp(max=3)[:, None].expand(-1, 5)
    return torch.full((5, 5), INF).scatter_reduce(0, at, x, "amin")


def extreme_one_hot_mask(x):
    return x.masked_fill(F.one_hot(LABELS, 5).bool(), -INF).amax(-1).square().mean()


def extreme_softplus_of_mask(x):
    return F.softplus(x.masked_fill(x < 0, -INF)).mean()


def extreme_exp_of_mask(x):
    return x.masked_fill(x < 0, -INF).exp().mean()


def extreme_sigmoid_of_mask(x):
    return x.masked_fill(x < 0, -INF).sigmoid().mean()


def extreme_inverse(x):
    return (1 / torch.where(x > 0, 1 + x, INF)).sum()


def extreme_norm_limit(x):
    return torch.linalg.vector_norm(x, INF, dim=1), torch.full((2,), INF)


def extreme_distance_out_of_reach(x):
    d = torch.cdist(x, x)
    return torch.where(d > 2, INF, d), -torch.where(d > 2, INF, d)


def extreme_marks_of_missing(x):
    return torch.where(x > 0, x, math.nan), torch.where(x > 0, x, math.nan).nanmean()


FUNCTIONS = [
    f for name, f in list(globals().items()) if name.partition("_")[0] in (
        "attention", "loss", "sample", "search", "extreme"
    )
]  # fmt: skip
