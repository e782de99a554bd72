"""Where PyTorch on a CPU and opstep are known to give NaNs and infinities in different places.

An entry says of which functions (a pattern of whole names, as `test_extremes` has them) and of
which results (``y``, or ``d``: gradients) differences are known, of which kinds, with numbers of
which groups, and why. Operands of mixed numbers have those of all groups.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from extremes import EXTRA, LARGE, LOST, MIXED, OTHER, PLAIN, REFUSED, SPECIAL, TINY, Difference


class Known(NamedTuple):
    names: str
    results: str
    whats: tuple[str, ...]
    groups: tuple[str, ...]
    reason: str

    def covers(self, name: str, difference: Difference) -> bool:
        return (
            re.fullmatch(self.names, name) is not None
            and difference.result in self.results
            and difference.what in self.whats
            and difference.group in (*self.groups, MIXED)
        )


ANY, NOT_FINITE = (LOST, EXTRA, OTHER), (LOST, OTHER)
L, SL, TL, ALL = (LARGE,), (SPECIAL, LARGE), (TINY, LARGE), (SPECIAL, TINY, PLAIN, LARGE)
S, NUMBERS = (SPECIAL,), (TINY, PLAIN, LARGE)
NN = r"(form |nn\.functional\.)"
PRODUCTS = (
    r"(form )?(add(bmm|mm|mv|r)|baddbmm|bmm|mm|mv|einsum.*|inner|kron|outer|tensordot.*|matmul|dot"
    r"|linear_odd|__rmatmul__|solve_tri|linalg.solve_triangular|cholesky_solve)(/.*)?"
    rf"|{NN}(linear|bilinear|multi_head_attention_forward)"
)
MEANS = (
    r"(form )?(mean|norm|std|var|cumsum|fold|embedding_bag_mean|bce_logits|mse).*|index_reduce/mean"
    rf"|form (triplet|nll_weight)|{NN}(cross_entropy.*|mse_loss|binary_cross_entropy_with_logits)"
)
NORMS = rf"{NN}(layer|rms|group|batch|instance)_norm.*|native_.*_norm"
ORDER = "terms or factors come in another order, in which others overflow on the way"
WIDER = "ours adds in f64, or takes a common factor out: it is right where PyTorch overflows"
VECTORS = "PyTorch's vectorised kernels and those for few, or other, elements do not agree"

KNOWN = (
    # --- sums and products ---
    Known(PRODUCTS, "yd", ANY, L, ORDER),
    Known(rf"{NN}bilinear", "d", (OTHER,), S, "sums of products come in another order"),
    Known(rf"{NN}conv.*", "yd", ANY, L, ORDER),
    Known(
        rf"{NN}conv.*", "yd", ANY, S,
        "PyTorch's kernels do not agree on whether zeros of padding are multiplied",
    ),
    Known(rf"{NN}(adaptive_)?avg_pool.*|{NN}interp.*(area|bicubic).*", "yd", ANY, L, ORDER),
    Known(rf"{NN}grid_sample", "d", ANY, L, ORDER),
    Known(r"addcdiv", "yd", NOT_FINITE, TL, ORDER),
    Known(r"addcmul", "yd", ANY, L, ORDER),
    Known(rf"{NN}(chunk_glu|glu|prelu)", "d", ANY, L, ORDER),
    Known(rf"{NN}kl_div", "d", NOT_FINITE, L, ORDER),
    Known(r"form fold|index_add", "y", (EXTRA, OTHER), L, ORDER),
    Known(
        rf"{NN}(mse|mse_loss)", "d", (EXTRA,), L,
        "PyTorch divides by the number of elements before it multiplies, and ours overflows",
    ),
    Known(MEANS, "yd", NOT_FINITE, L, WIDER),
    Known(r"(form )?(mean|std|var).*", "yd", (EXTRA,), L, ORDER),
    Known(r"(form )?std.*|linalg.vector_norm", "d", (LOST,), NUMBERS, WIDER),
    Known(
        r"nn.functional.binary_cross_entropy", "d", (OTHER,), S,
        "the least divisor is 0 in f16, and has the sign of x in PyTorch",
    ),
    Known(r"form pow1.5", "d", (OTHER,), S, VECTORS),
    Known(NORMS, "yd", NOT_FINITE, L, WIDER),
    Known(
        rf"{NORMS}|(std|var)_mean.*", "yd", (EXTRA, OTHER), L,
        "the mean, or its distance to an element, overflows in ours",
    ),
    Known(
        rf"{NORMS}|(std|var)_mean.*", "yd", (OTHER,), S,
        "PyTorch finds means step by step, and gets NaN of infinities, where the sum is infinite",
    ),
    Known(
        r"(form )?(prod|cumprod).*|(index|scatter)_reduce/prod", "yd", ANY, ALL,
        "PyTorch divides the product by each factor for gradients, and ours multiplies the others",
    ),
    # --- attention ---
    Known(
        r"form (sdpa|mha).*", "yd", (LOST, OTHER), L,
        "PyTorch's fused kernel scales scores after they overflowed, its other one before, as ours",
    ),
    Known(
        r"form (sdpa|mha).*", "yd", (EXTRA, OTHER), SL,
        "PyTorch's fused kernel for CPUs gives 0 for rows of q with NaN; its other one gives NaN",
    ),
    Known(
        rf"{NN}(sdpa_mask|sdpa_f32_causal|scaled_dot_product_attention)", "yd", ANY, SL,
        "PyTorch multiplies masked rows of v with 0",
    ),
    # --- element by element ---
    Known(r"abs|nn.functional.l1_loss", "d", (EXTRA,), SL, "PyTorch's sign of NaN is 0, ours NaN"),
    Known(rf"{NN}(elu|celu|selu|hardswish)", "d", (EXTRA,), S, VECTORS),
    Known(rf"{NN}gelu", "yd", NOT_FINITE, SL, VECTORS),
    Known(r"(form )?(fmod|remainder)", "y", (LOST,), TL, VECTORS),
    Known(rf"{NN}grid_sample", "yd", ANY, SL, VECTORS),
    Known(
        r"(form )?digamma", "d", (EXTRA, OTHER), (PLAIN, LARGE),
        "its slope has poles there, which PyTorch misses by rounding",
    ),
    Known(
        r"div/trunc_rounding", "d", (EXTRA,), ALL,
        "ours cuts off a quotient: it has 0 times the slope of that, which may be infinite",
    ),
    Known(
        r"logit", "d", NOT_FINITE, ALL,
        "ours is of two logarithms, whose slopes are finite also where they themselves are NaN",
    ),
    Known(
        r"(form )?(max|min)(/.*|_dim_idx)", "d", (EXTRA,), S,
        "PyTorch's gradient goes to the NaN alone; ours to all that equal it, and these are none",
    ),
    Known(
        r"form bce_logits|nn.functional.binary_cross_entropy_with_logits", "y", (OTHER,), SL,
        "PyTorch takes an infinity from an infinity, where ours has one of them only",
    ),
    Known(
        r"cholesky|linalg.cholesky", "y", (REFUSED,), (TINY,),
        "a pivot of denormals is 0 in ours",
    ),
    Known(
        r"cholesky_solve", "d", (LOST,), ALL,
        "PyTorch has gradients also for the triangle that is not read",
    ),
)  # fmt: skip


def unknown(name: str, found: dict[Difference, str]) -> list[str]:
    """The differences that no entry covers."""
    return [
        f"{d.result} {d.what}, {d.group} operands: {shown}"
        for d, shown in found.items()
        if not any(k.covers(name, d) for k in KNOWN)
    ]
