"""Forms of single ops of PyTorch, of sizes at which their kernels take longer than their launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F


class Form(NamedTuple):
    """A function of tensors, given by their sizes: ``"f 8 64"`` is normally distributed and gets a
    gradient, ``"p 8"`` lies between 0.1 and 1, so does ``"q 8"``, which gets none; ``"i9 8"`` are
    indices below 9, ``"n 8"`` are 0, 1, ..., ``"b 8"`` are bools.
    """

    function: Callable[..., Any]
    tensors: tuple[str, ...]
    backward: bool = True


FORMS: dict[str, Form] = {}
PLANE = "f 8 64 128 128"
ROWS = "f 4096 4096"
FLAT = "f 2048 4096"


def form(name: str, function: Callable[..., Any], *tensors: str, backward: bool = True) -> None:
    FORMS[name] = Form(function, tensors, backward)


def norms() -> None:
    form("group_norm", lambda x, w, b: F.group_norm(x, 16, w, b), PLANE, "f 64", "f 64")
    form("instance_norm", lambda x: F.instance_norm(x), PLANE)
    form(
        "layer_norm_last",
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        "f 8 1024 1024",
        "f 1024",
        "f 1024",
    )
    form("layer_norm_chw", lambda x: F.layer_norm(x, x.shape[1:]), PLANE)
    form("rms_norm", lambda x, w: F.rms_norm(x, x.shape[-1:], w), "f 8 1024 1024", "f 1024")
    form("local_response_norm", lambda x: F.local_response_norm(x, 5), PLANE)
    form(
        "batch_norm_train",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        PLANE,
        "f 64",
        "f 64",
    )
    form("normalize_p2", lambda x: F.normalize(x, dim=-1), FLAT)
    form("cosine_sim", lambda x, y: F.cosine_similarity(x, y, dim=-1), FLAT, FLAT)


def windows() -> None:
    small = "f 8 64 64 64"
    for mode in ("nearest", "bilinear", "bicubic"):
        form(
            f"interp_{mode}",
            lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode),
            small,
        )
    form(
        "interp_trilinear",
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        "f 2 32 32 32 32",
    )
    form("interp_area_down", lambda x: F.interpolate(x, size=32, mode="area"), PLANE)
    form("adaptive_avg_pool7", lambda x: F.adaptive_avg_pool2d(x, 7), PLANE)
    form("adaptive_max_pool7", lambda x: F.adaptive_max_pool2d(x, 7), PLANE)
    form("max_pool3s2", lambda x: F.max_pool2d(x, 3, 2, 1), PLANE)
    form("avg_pool3s2", lambda x: F.avg_pool2d(x, 3, 2, 1), PLANE)
    form("max_pool3d", lambda x: F.max_pool3d(x, 2), "f 2 32 64 64 64")
    form("avg_pool3d", lambda x: F.avg_pool3d(x, 3, 2, 1), "f 2 32 64 64 64")
    form("lp_pool", lambda x: F.lp_pool2d(x, 2.0, 3, 2), PLANE)
    form("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), PLANE)
    form("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), PLANE)
    form("unfold", lambda x: F.unfold(x, 3, padding=1), "f 4 32 64 64")
    form("fold", lambda x: F.fold(x, (64, 64), 3, padding=1), "f 4 288 4096")
    form(
        "grid_sample",
        lambda x, g: F.grid_sample(x, torch.tanh(g), align_corners=False),
        small,
        "f 8 64 64 2",
    )
    form("pad_reflect", lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), PLANE)
    form("pad_replicate", lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"), PLANE)
    form("pad_circular", lambda x: F.pad(x, (3, 3, 3, 3), mode="circular"), PLANE)
    form("pad_constant", lambda x: F.pad(x, (3, 3, 3, 3)), PLANE)


def convolutions() -> None:
    form("conv1d_k7", lambda x, w: F.conv1d(x, w, padding=3), "f 16 256 8192", "f 256 256 7")
    form(
        "conv1d_dilated_dw",
        lambda x, w: F.conv1d(x, w, padding=8, dilation=8, groups=256),
        "f 16 256 8192",
        "f 256 1 3",
    )
    form("conv3d_k3", lambda x, w: F.conv3d(x, w, padding=1), "f 2 32 48 48 48", "f 32 32 3 3 3")
    form(
        "conv3d_groups",
        lambda x, w: F.conv3d(x, w, stride=2, padding=1, groups=4),
        "f 2 32 48 48 48",
        "f 64 8 3 3 3",
    )
    form(
        "conv_transpose3d",
        lambda x, w: F.conv_transpose3d(x, w, stride=2),
        "f 2 64 24 24 24",
        "f 64 32 2 2 2",
    )
    form(
        "conv2d_dilated",
        lambda x, w: F.conv2d(x, w, padding=4, dilation=4),
        "f 8 64 64 64",
        "f 64 64 3 3",
    )
    form(
        "conv2d_groups32",
        lambda x, w: F.conv2d(x, w, padding=1, groups=32),
        "f 16 256 56 56",
        "f 256 8 3 3",
    )
    form(
        "conv2d_7x7s2",
        lambda x, w: F.conv2d(x, w, stride=2, padding=3),
        "f 16 3 224 224",
        "f 64 3 7 7",
    )
    form(
        "conv_transpose2d_k4s2",
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        "f 8 128 32 32",
        "f 128 64 4 4",
    )
    form(
        "conv_transpose1d",
        lambda x, w: F.conv_transpose1d(x, w, stride=4, padding=2),
        "f 8 256 1024",
        "f 256 128 8",
    )
    form(
        "conv2d_1x1_nhwc",
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w),
        "f 16 256 56 56",
        "f 256 256 1 1",
    )


def reductions() -> None:
    form("softmax_dim1", lambda x: torch.softmax(x, 1), PLANE)
    form("softmax_columns", lambda x: torch.softmax(x, 0), "f 16384 4096")
    form("log_softmax", lambda x: torch.log_softmax(x, -1), FLAT)
    form("logsumexp_dim0", lambda x: torch.logsumexp(x, 0), ROWS)
    form(
        "gumbel-like",
        lambda x, u: torch.softmax(x - torch.log(-torch.log(u * 0.98)), -1),
        FLAT,
        "p 2048 4096",
    )
    form("sum_dim0", lambda x: x.sum(0), FLAT)
    form("mean_hw", lambda x: x.mean((2, 3)), PLANE)
    form("var_dim0", lambda x: x.var(0), ROWS)
    form("std_all", lambda x: x.std(), FLAT)
    form("norm_all", lambda x: x.norm(), FLAT)
    form("amax_dim1", lambda x: x.amax(1), PLANE)
    form("max_dim_idx", lambda x: x.max(-1), FLAT)
    form("argmax", lambda x: x.argmax(-1), FLAT, backward=False)
    form("prod_last", lambda x: x.prod(-1), ROWS)
    form("median_last", lambda x: x.median(-1)[0], "f 1024 1024")
    form("any_all", lambda x: ((x > 3).any(-1), (x > -3).all(-1)), FLAT, backward=False)
    form("cumsum_last", lambda x: x.cumsum(-1), ROWS)
    form("cumsum_dim0", lambda x: x.cumsum(0), ROWS)
    form("cumprod_last", lambda x: x.cumprod(-1), ROWS)
    form("cumprod_dim0", lambda x: x.cumprod(0), ROWS)
    form("cummax_last", lambda x: x.cummax(-1)[0], FLAT)
    form("logcumsumexp", lambda x: x.logcumsumexp(-1), FLAT)
    form("diff", lambda x: x.diff(dim=-1), FLAT)
    form("sort_last", lambda x: x.sort(-1)[0], FLAT)
    form("topk8", lambda x: x.topk(8, -1)[0], FLAT)
    form("kthvalue", lambda x: x.kthvalue(100, -1)[0], "f 1024 1024")
    form("sort_dim0", lambda x: x.sort(0)[0], "f 4096 512")
    form("unique-like argsort", lambda x: x.argsort(), "f 1048576", backward=False)


def indices() -> None:
    form("embedding", lambda w, i: F.embedding(i, w), "f 50257 768", "i50257 8 1024")
    form(
        "embedding_bag_sum",
        lambda w, i, o: F.embedding_bag(i, w, o * 20, mode="sum"),
        "f 100000 64",
        "i100000 40960",
        "n 2048",
    )
    form(
        "embedding_bag_mean",
        lambda w, i: F.embedding_bag(i, w, mode="mean"),
        "f 100000 64",
        "i100000 2048 20",
    )
    form("index_select0", lambda x, i: x.index_select(0, i), "f 8192 512", "i8192 8192")
    form("index_select1", lambda x, i: x.index_select(1, i), "f 2048 4096", "i4096 4096")
    form("index_adv", lambda x, i, j: x[i, j], ROWS, "i4096 1048576", "i4096 1048576")
    form("index_mask_row", lambda x, i, j: x[:, i, :, j], "f 16 64 64 64", "i64 512", "i64 512")
    form("gather_last", lambda x, i: x.gather(-1, i), ROWS, "i4096 4096 2048")
    form(
        "scatter_add",
        lambda x, i, s: x.scatter_add(0, i, s),
        "f 4096 1024",
        "i4096 16384 1024",
        "f 16384 1024",
    )
    form(
        "index_add",
        lambda x, i, s: x.index_add(0, i, s),
        "f 8192 256",
        "i8192 65536",
        "f 65536 256",
    )
    form(
        "index_add_few", lambda x, i, s: x.index_add(0, i, s), "f 4 64", "i4 200000", "f 200000 64"
    )
    form("histogram", lambda x, i, s: x.index_add(0, i, s), "f 16", "i16 4194304", "f 4194304")
    form(
        "index_put_acc",
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        "f 8192 256",
        "i8192 65536",
        "f 65536 256",
    )
    form(
        "scatter_reduce_amax",
        lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
        "f 4096 1024",
        "i4096 16384 1024",
        "f 16384 1024",
    )
    form("masked_select-like where", lambda x, m: torch.where(m, x, 0.0), ROWS, "b 4096 4096")
    form("one_hot", lambda i: F.one_hot(i, 1000).float(), "i1000 16384", backward=False)
    form("take_along", lambda x, i: torch.take_along_dim(x, i, -1), FLAT, "i4096 2048 64")
    form("transpose_copy", lambda x: x.T.contiguous(), ROWS)
    form("permute_nhwc", lambda x: x.permute(0, 2, 3, 1).contiguous(), PLANE)
    form("cat_dim1", lambda x, y: torch.cat([x, y], 1), PLANE, PLANE)
    form("stack", lambda x, y: torch.stack([x, y], -1), PLANE, PLANE)
    form("repeat_interleave", lambda x: x.repeat_interleave(3, -1), FLAT)
    form("tril", lambda x: x.tril(), "f 16 1024 1024")
    form("slice_step", lambda x: x[:, ::2].contiguous(), ROWS)
    form("roll", lambda x: x.roll((3, 5), (2, 3)), PLANE)
    form("flip", lambda x: x.flip(-1), PLANE)
    form("expand_mul", lambda x, y: x[:, :, None] * y[:, None], "f 64 256", "f 64 256")
    form("chunk_glu", lambda x: F.glu(x, -1), FLAT)
    form("swiglu", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], FLAT)
    form(
        "view_as_heads",
        lambda x: x.view(*x.shape[:2], 16, -1).transpose(1, 2).contiguous(),
        "f 16 512 2048",
    )


def products() -> None:
    form("bmm", torch.bmm, "f 64 512 512", "f 64 512 512")
    form(
        "einsum_bhid",
        lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
        "f 8 12 256 64",
        "f 8 12 256 64",
    )
    form(
        "baddbmm",
        lambda x, a, b: torch.baddbmm(x, a, b, beta=0.5),
        "f 64 512 512",
        "f 64 512 512",
        "f 64 512 512",
    )
    form("outer", torch.outer, "f 4096", "f 4096")
    form("mv", torch.mv, ROWS, "f 4096")
    form("linear_odd", F.linear, "f 1000 777", "f 999 777", "f 999")
    form("cdist", torch.cdist, "f 1024 64", "f 1024 64")
    form("tensordot3", lambda x, y: torch.tensordot(x, y, dims=2), "f 64 32 32", "f 32 32 64")
    form("bilinear", F.bilinear, "f 2048 128", "f 2048 128", "f 128 128 128")
    heads = ("f 4 16 512 64",) * 3
    attend = F.scaled_dot_product_attention
    form("sdpa_f32", attend, *heads)
    form("sdpa_f32_causal", lambda q, k, v: attend(q, k, v, is_causal=True), *heads)
    form("sdpa_d256", attend, *("f 2 8 512 256",) * 3)
    form("sdpa_mask", lambda q, k, v, m: attend(q, k, v, attn_mask=m), *heads, "b 512 512")
    form("mha_cross", attend, "f 4 16 128 64", "f 4 16 512 64", "f 4 16 512 64")
    form(
        "cholesky",
        lambda x: torch.linalg.cholesky(
            (x @ x.mT + 64 * torch.eye(x.shape[-1], device=x.device, dtype=x.dtype)).float()
        ),
        "f 64 64 64",
    )
    form(
        "cholesky_1024",
        lambda x: torch.linalg.cholesky(
            (x @ x.mT + 64 * torch.eye(x.shape[-1], device=x.device, dtype=x.dtype)).float()
        ),
        "f 1024 1024",
    )
    form(
        "solve_tri",
        lambda a, b: torch.linalg.solve_triangular(
            (a.tril() + 64 * torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)).float(),
            b.float(),
            upper=False,
        ),
        "f 16 256 256",
        "f 16 256 64",
    )


def losses() -> None:
    form("cross_entropy_small", F.cross_entropy, "f 4096 10", "i10 4096")
    form("cross_entropy_2d", F.cross_entropy, "f 8 21 128 128", "i21 8 128 128")
    form("bce_logits", F.binary_cross_entropy_with_logits, FLAT, "p 2048 4096")
    form("smooth_l1", F.smooth_l1_loss, FLAT, FLAT)
    form(
        "kl_div",
        lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
        FLAT,
        FLAT,
    )
    form(
        "nll_weight",
        lambda x, i, w: F.nll_loss(F.log_softmax(x, -1), i, w),
        "f 4096 1000",
        "i1000 4096",
        "q 1000",
    )
    form("triplet", F.triplet_margin_loss, FLAT, FLAT, FLAT)
    form(
        "label_smooth_ce",
        lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1),
        "f 4096 1000",
        "i1000 4096",
    )
    form("mse", F.mse_loss, FLAT, FLAT)


def elements() -> None:
    for name in ("gelu", "silu", "mish", "softplus", "elu", "hardswish"):
        form(name, getattr(F, name), FLAT)
    for name in ("tanh", "erf", "sin", "lgamma", "digamma", "round"):
        form(name, getattr(torch, name), FLAT)
    form("pow1.5", lambda x: x.pow(1.5), "p 2048 4096")
    form("erfinv", lambda x: (x * 0.9).erfinv(), "p 2048 4096")
    for name in ("atan2", "fmod", "logaddexp", "xlogy"):
        form(name, getattr(torch, name), "p 2048 4096", "p 2048 4096")
    form("prelu", F.prelu, PLANE, "f 64")


for group in (norms, windows, convolutions, reductions, indices, products, losses, elements):
    group()
