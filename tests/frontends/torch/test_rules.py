"""ATen ops against eager PyTorch, with the samples that PyTorch tests its own ops with, every other
one with gaps between its elements, and with operands that it refuses.

Of element types other than f32 and i64 every third op is taken, another one in each type;
``pytest tests/frontends/torch/test_rules.py --every-op`` takes all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from agreement import Call, Calls, check
from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError, Unsupported
from torch.nn import functional

import opstep

FAMILIES = {
    "unary": """abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh deg2rad digamma erf
        erfc erfinv exp exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf lgamma log
        log10 log1p log2 logical_not logit nan_to_num neg positive reciprocal round rsqrt sgn
        sigmoid sign signbit sin sinh sqrt square tan tanh trunc zero_""",
    "activations": """nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.glu
        nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
        nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid
        nn.functional.mish nn.functional.prelu nn.functional.relu nn.functional.relu6
        nn.functional.selu nn.functional.silu nn.functional.softplus nn.functional.softsign
        nn.functional.tanhshrink nn.functional.threshold""",
    "binary": """add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift
        bitwise_xor clamp clamp_max clamp_min copysign div eq floor_divide fmax fmin fmod ge gt
        heaviside hypot isclose le lerp logaddexp logical_and logical_or logical_xor lt maximum
        minimum mul ne pow remainder rsub sub true_divide where xlogy addcdiv addcmul
        masked_fill __radd__ __rdiv__ __rmul__ __rpow__ __rsub__""",
    "reductions": """all amax amin any argmax argmin count_nonzero cumprod cumsum
        linalg.vector_norm log_softmax logcumsumexp logsumexp max mean median min nanmean nansum
        prod cummax cummin softmax std std_mean sum var var_mean diff aminmax""",
    "views": """as_strided broadcast_to chunk diagonal expand flatten flip movedim narrow_copy
        permute reshape roll rot90 select slice split split_with_sizes squeeze t transpose unbind
        unflatten unfold unsqueeze view""",
    "moving": """arange block_diag cat clone constant_pad_nd diag diag_embed diagonal_scatter eye
        full full_like linspace meshgrid new_full nn.functional.pad ones repeat select_scatter
        slice_scatter stack tile tril tril_indices triu triu_indices zeros""",
    "indexing": """bucketize gather index_add index_copy index_fill index_select isin
        masked_scatter put scatter scatter_add
        scatter_reduce searchsorted take take_along_dim index_reduce""",
    "products": """addbmm addmm addmv addr baddbmm bmm cdist dot einsum inner kron matmul mm mv
        cholesky cholesky_solve linalg.cholesky linalg.solve_triangular nn.functional.bilinear
        nn.functional.linear nn.functional.pdist outer tensordot""",
    "convolutions": """nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d
        nn.functional.conv_transpose1d nn.functional.conv_transpose2d
        nn.functional.conv_transpose3d nn.functional.fold nn.functional.unfold
        nn.functional.grid_sample""",
    "pools": """nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
        nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool1d
        nn.functional.adaptive_max_pool2d nn.functional.avg_pool1d nn.functional.avg_pool2d
        nn.functional.avg_pool3d nn.functional.max_pool1d nn.functional.max_pool2d
        nn.functional.max_pool3d max_pool2d_with_indices_backward nn.functional.interpolate
        nn.functional.pixel_shuffle nn.functional.pixel_unshuffle
        nn.functional.channel_shuffle""",
    "layers": """nn.functional.batch_norm nn.functional.group_norm nn.functional.instance_norm
        nn.functional.layer_norm nn.functional.rms_norm native_group_norm native_batch_norm
        nn.functional.scaled_dot_product_attention nn.functional.multi_head_attention_forward
        nn.functional.normalize nn.functional.local_response_norm""",
    "losses": """nn.functional.binary_cross_entropy
        nn.functional.binary_cross_entropy_with_logits nn.functional.cosine_embedding_loss
        nn.functional.cross_entropy nn.functional.huber_loss nn.functional.kl_div
        nn.functional.l1_loss nn.functional.mse_loss nn.functional.nll_loss
        nn.functional.smooth_l1_loss nn.functional.soft_margin_loss""",
}
UNORDERED = "sort topk kthvalue msort argsort"  # equal elements come in any order: floats only
COUNTS = {torch.float32: 2}  # samples of an op; of other element types one
EAGER_FAILS = ("partial_views",)
CONTIGUOUS = ("view", "as_strided")  # PyTorch takes no other samples of these
REFUSALS = (TorchRuntimeError, Unsupported)  # Dynamo's, by the shapes
OTHERS = {
    torch.float64: "reductions",
    torch.float16: "binary",
    torch.bfloat16: "unary",
    torch.int32: "reductions",
    torch.int16: "unary",
    torch.int8: "binary",
    torch.uint8: "moving",
    torch.bool: "binary views",
}


def _samples(names: str, dtype: torch.dtype) -> Iterator[Call]:
    from torch.testing._internal.common_methods_invocations import op_db  # takes two seconds

    wanted = set(names.split())
    for op in op_db:
        if op.name not in wanted or dtype not in op.supported_dtypes("cpu"):
            continue
        if op.variant_test_name in EAGER_FAILS:
            continue
        torch.manual_seed(0)
        found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        for k, sample in enumerate(found[:: math.ceil(len(found) / COUNTS.get(dtype, 1))]):
            if k % 2 and op.name not in CONTIGUOUS:
                sample = sample.noncontiguous()
            if not sample.kwargs.get("dropout_p"):
                yield Call(op.name, op.op, (sample.input, *sample.args), sample.kwargs)


def _check(calls: list[Call]) -> None:
    assert calls
    model = Calls(calls)
    check(model, *model.tensors)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples(family, dtype):
    calls = list(_samples(FAMILIES[family], dtype))
    if not calls:
        pytest.skip("only of floats")
    _check(calls)


@pytest.mark.parametrize(
    ("dtype", "family"), [(d, f) for d, names in OTHERS.items() for f in names.split()]
)
def test_other_element_types(dtype, family, request):
    ops = FAMILIES[family].split()
    if not request.config.getoption("--every-op"):
        ops = ops[list(OTHERS).index(dtype) % 3 :: 3]
    _check(list(_samples(" ".join(ops), dtype)))


def test_orders():
    _check(list(_samples(UNORDERED, torch.float32)))


@pytest.mark.parametrize("family", ["indexing", "reductions", "products"])
def test_refused_operands(family, compiled):
    """What PyTorch refuses is refused, also where only its kernels look."""
    from torch.testing._internal.common_methods_invocations import op_db

    wanted, count = set(FAMILIES[family].split()), 0
    for op in op_db:
        if op.name not in wanted or op.error_inputs_func is None:
            continue
        for error in op.error_inputs("cpu"):
            sample, model = error.sample_input, compiled(op.op)
            if not isinstance(sample.input, torch.Tensor) or "out" in sample.kwargs:
                continue
            given = (sample.input, *sample.args)
            with pytest.raises(error.error_type):
                op.op(*given, **sample.kwargs)
            with pytest.raises((opstep.OpstepError, *REFUSALS, error.error_type)):
                model(*given, **sample.kwargs)
            count += 1
    assert count


MIXED = {
    "linear": lambda x, w: functional.linear(x, w),
    "mm": lambda x, w: x @ w.T,
    "layer_norm": lambda x, w: functional.layer_norm(x, [2], w[0], w[1]),
    "group_norm": lambda x, w: functional.group_norm(x, 1, w[0], w[1]),
    "batch_norm": lambda x, w: functional.batch_norm(x, w[0], w[1]),
    "batch_norm_train": lambda x, w: functional.batch_norm(x, None, None, w[0], w[1], True),
    "cdist": torch.cdist,
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_element_types(name, compiled):
    """They are refused where PyTorch's kernels refuse them, and taken where they take them."""
    function, x = MIXED[name], torch.arange(6.0).view(3, 2)
    model, refused = compiled(function), 0
    for dtypes in itertools.product((torch.float32, torch.float64, torch.bfloat16), repeat=2):
        given = [x.to(dtype) for dtype in dtypes]
        try:
            wanted = function(*given)
        except NotImplementedError:  # of this type alone: ours has an op for it
            continue
        except RuntimeError:
            refused += 1
            with pytest.raises(BackendCompilerFailed, match=r"element types|: operands of"):
                model(*given)
        else:
            torch.testing.assert_close(model(*given), wanted)
    assert refused
