"""Primitives, against JAX. Many are in one function, as each takes JAX time to compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax import lax
from jax_agreement import agree, together

rng = np.random.default_rng(0)


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(rng.normal(size=shape).astype(dtype))


def ints(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
    return jnp.asarray(rng.integers(low, high, size=shape).astype(dtype))


UNARY = """exp exp2 expm1 log log2 log1p tanh sin cos tan sinh cosh arcsinh sqrt cbrt floor ceil
    trunc round square reciprocal sign abs negative isfinite isnan arctan"""
ACTIVATIONS = """relu gelu silu softmax log_softmax sigmoid softplus elu selu leaky_relu logsumexp
    standardize glu celu mish hard_tanh"""


def test_functions_of_one_number():
    functions: dict[str, Any] = {n: lambda x, n=n: getattr(jnp, n)(x) for n in UNARY.split()}
    for n in ["rsqrt", "erf", "erfc", "erf_inv", "lgamma", "digamma"]:
        functions[n] = lambda x, n=n: getattr(lax, n)(x / 8)
    agree(together(**functions), jnp.abs(floats(3, 5)) + 0.1)


def test_activations_and_their_derivatives():
    functions: dict[str, Any] = {
        n: lambda x, n=n: getattr(jax.nn, n)(x) for n in ACTIVATIONS.split()
    }
    for n in ACTIVATIONS.split():
        functions[f"d_{n}"] = jax.grad(lambda x, n=n: (getattr(jax.nn, n)(x) ** 2).sum())
    agree(together(**functions), floats(4, 6))


def test_in_f64():
    with jax.enable_x64(True):
        functions: dict[str, Any] = {
            n: lambda x, n=n: getattr(jnp, n)(x) for n in ("exp", "sum", "cumsum", "sort")
        }
        functions["product"] = lambda x: x @ x.T + 1 / 3
        functions["logits"] = jax.grad(lambda x: jax.nn.log_softmax(x)[:, 0].sum())
        functions["integers"] = lambda x: jnp.argsort(x) + 2**40
        program = agree(together(**functions), floats(3, 5, dtype=np.float64))
    assert {str(t.dtype) for t in program.graph("main").results} == {"f64", "i64"}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_halves(dtype):
    agree(
        together(
            product=lambda x: x @ x.T,
            wider=lambda x: x.astype(jnp.float32) * 0.1,
            weak=lambda x: x * 0.3 + 1,
            preferred=lambda x: lax.dot(x, x.T, preferred_element_type=jnp.float32),
        ),
        floats(3, 4).astype(dtype),
    )


def test_functions_of_two_numbers():
    names = (
        "add subtract multiply divide maximum minimum arctan2 fmod floor_divide remainder power "
        "hypot logaddexp copysign nextafter less greater_equal not_equal"
    )
    functions: dict[str, Any] = {n: lambda x, y, n=n: getattr(jnp, n)(x, y) for n in names.split()}
    functions["clip"] = lambda x, y: jnp.clip(x, 0.3, 0.9) + lax.clamp(0.3, x, y[0])
    functions["powers"] = lambda x, y: x**3 + x**-2 + y**-1
    functions["order"] = lambda x, y: jnp.searchsorted(jnp.sort(x.reshape(-1)), y)
    agree(together(**functions), jnp.abs(floats(4, 5)) + 0.2, jnp.abs(floats(5)) + 0.1)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.uint32])
def test_integers(dtype):
    names = (
        "add subtract multiply floor_divide remainder fmod maximum minimum bitwise_and bitwise_or "
        "bitwise_xor left_shift right_shift true_divide less less_equal equal"
    )
    functions: dict[str, Any] = {n: lambda x, y, n=n: getattr(jnp, n)(x, y) for n in names.split()}
    functions["div"] = lambda x, y: lax.div(x, jnp.broadcast_to(y, x.shape))
    functions["rem"] = lambda x, y: lax.rem(x, jnp.broadcast_to(y, x.shape))
    functions["logical"] = lambda x, y: lax.shift_right_logical(x, jnp.broadcast_to(y, x.shape))
    functions["arithmetic"] = lambda x, y: lax.shift_right_arithmetic(x, y + 0 * x)
    functions["product"] = lambda x, y: lax.dot(x, x.T, preferred_element_type=jnp.float32)
    functions["logical_3"] = lambda x, y: lax.shift_right_logical(x, lax.full_like(x, 3))
    functions["bits"] = lambda x, y: lax.population_count(x) + lax.clz(x) + ~x
    functions["floats"] = lambda x, y: x.astype(jnp.float32) / 3
    functions["extremes"] = lambda x, y: (x.max(0), x.min(), x.argmax(), jnp.sort(x, 1))
    limits = np.iinfo(dtype)
    x = jnp.asarray(rng.integers(limits.min, limits.max, size=(4, 5), dtype=dtype))
    agree(together(**functions), x, ints(1, 7, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_floats_as_integers(dtype):
    """Those that do not fit are the nearest that do, and NaN is 0."""
    agree(
        together(vector=lambda x: x.astype(dtype), number=lambda x: x[2].astype(dtype)),
        jnp.array([jnp.nan, jnp.inf, -jnp.inf, 7e4, -7e4, 2.7, -2.7, 255.5, 1e20, -129]),
    )


def test_bits_of_floats():
    agree(
        together(
            as_integers=lambda x: lax.bitcast_convert_type(x, jnp.int32),
            back=lambda x: lax.bitcast_convert_type(
                lax.bitcast_convert_type(x, jnp.uint32), x.dtype
            ),
            shorter=lambda x: lax.bitcast_convert_type(x, jnp.uint8),
            longer=lambda x: lax.bitcast_convert_type(x.astype(jnp.float16), jnp.int32),
            cut=lambda x: lax.reduce_precision(x, 8, 7),
        ),
        floats(3, 2),
    )


def test_products():
    a, b = floats(2, 3, 4, 5), floats(2, 3, 6, 5)
    agree(
        together(
            matrices=lambda a, b: a[0, 0] @ b[0, 0].T,
            vectors=lambda a, b: a[0, 0, 0] @ b[0, 0, 1],
            row=lambda a, b: a[0, 0, 0] @ b[0, 0].T,
            batch=lambda a, b: a @ b.swapaxes(2, 3),
            heads=lambda a, b: jnp.einsum("bhqd,bhkd->bqhk", a, b),
            outer=lambda a, b: jnp.outer(a[0, 0, 0], b[0, 0, 0]),
            both=lambda a, b: jnp.tensordot(a, b, ((1, 3), (1, 3))),
            last=lambda a, b: a @ b[0, 0].T,
            derived=jax.grad(lambda a, b: ((a @ b[0, 0].T) ** 2).sum(), (0, 1)),
            mapped=jax.vmap(lambda a, b: a[0] @ b[1].T),
            attention=lambda a, b: jax.nn.dot_product_attention(a, b[:, :, :4], b[:, :, :4]),
        ),
        a,
        b,
    )


def test_equations():
    def solved(x, y):
        matrix = x @ x.T + 3 * jnp.eye(4)
        root = jnp.linalg.cholesky(matrix)
        lower = jax.scipy.linalg.solve_triangular(root, y, lower=True)
        return root, lower, jax.scipy.linalg.solve_triangular(root.T, y)

    agree(solved, floats(4, 4), floats(4, 2))


NHWC = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS = {
    "same": {"window_strides": (1, 1), "padding": "SAME"},
    "strided": {"window_strides": (2, 1), "padding": "VALID"},
    "dilated": {"window_strides": (2, 2), "padding": "SAME", "rhs_dilation": (2, 2)},
    "odd": {"window_strides": (3, 1), "padding": ((-1, 2), (3, -1))},
    "transposed": {"window_strides": (1, 1), "padding": ((1, 2), (2, 0)), "lhs_dilation": (2, 3)},
    "grouped": {"window_strides": (2, 1), "padding": "SAME", "feature_group_count": 2},
}


@pytest.mark.parametrize("how", CONVOLUTIONS)
def test_convolutions_and_their_derivatives(how):
    attrs = CONVOLUTIONS[how]

    def convolution(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=NHWC, **attrs)

    def derived(x, w):
        return jax.grad(lambda x, w: (convolution(x, w) ** 2).sum(), (0, 1))(x, w)

    groups = attrs.get("feature_group_count", 1)
    agree(together(y=convolution, g=derived), floats(2, 7, 6, 4), floats(3, 2, 4 // groups, 6))


def test_convolutions_of_sequences_and_volumes():
    agree(
        together(
            sequence=lambda x, w: lax.conv_general_dilated(
                x, w, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            ),
            volume=lambda x, w: lax.conv_general_dilated(
                x[:, :, :4, None, None], w.transpose(2, 1, 0)[..., None, None], (1, 1, 1), "SAME"
            ),
        ),
        floats(1, 8, 8),
        floats(3, 8, 6),
    )


def test_windows_and_their_derivatives():
    window, step = (1, 3, 2, 1), (1, 2, 2, 1)

    def largest(x, padding="SAME"):
        return lax.reduce_window(x, -jnp.inf, lax.max, window, step, padding)

    def total(x, padding="SAME"):
        return lax.reduce_window(x, 0.0, lax.add, window, step, padding)

    agree(
        together(
            largest=largest,
            total=total,
            valid=lambda x: largest(x, "VALID") + total(x, "VALID"),
            least=lambda x: lax.reduce_window(x, jnp.inf, lax.min, window, step, "SAME"),
            counted=lambda x: lax.reduce_window(
                (x * 9).astype(jnp.int32), 0, lax.add, window, step, "SAME"
            ),
            d_largest=jax.grad(lambda x: (largest(x) ** 2).sum()),
            d_total=jax.grad(lambda x: (total(x) ** 2).sum()),
            forward=lambda x: jax.jvp(largest, (x,), (x * 2,)),
        ),
        floats(2, 7, 8, 3),
    )


def test_reductions():
    names = ["sum", "prod", "max", "min", "mean", "var", "std"]
    functions: dict[str, Any] = {n: lambda x, n=n: getattr(jnp, n)(x, axis=1) for n in names}
    functions |= {f"{n}s": lambda x, n=n: getattr(jnp, n)(x, (0, 2), keepdims=True) for n in names}
    for n in names:
        functions[f"d_{n}"] = jax.grad(lambda x, n=n: (getattr(jnp, n)(x, axis=1) ** 2).sum())
    for n in ("argmax", "argmin", "cumsum", "cumprod"):
        functions[n] = lambda x, n=n: getattr(jnp, n)(x, axis=1)
    functions["bools"] = lambda x: ((x > 0).any(1), (x > 0).all(), (x > 0).sum(0), (x > 0).max(1))
    functions["last"] = lambda x: lax.cummax(x, 1, reverse=True) + lax.cumlogsumexp(x, 0)
    functions["backwards"] = jax.grad(lambda x: (jnp.cumsum(x, 1) ** 2).sum())
    agree(together(**functions), floats(3, 4, 5))


def test_order():
    agree(
        together(
            sort=lambda x, k: jnp.sort(x, 0),
            places=lambda x, k: jnp.argsort(x, 1),
            keys=lambda x, k: lax.sort((k, x), num_keys=2),
            best=lambda x, k: lax.top_k(x, 3),
            signs=lambda x, k: lax.top_k(jnp.array([0.0, -0.0, jnp.nan, -jnp.nan]) * k[0], 4),
            middle=lambda x, k: jnp.median(x, 0),
            part=lambda x, k: jnp.quantile(x, 0.3, axis=0),
            d_sort=jax.grad(lambda x, k: (jnp.sort(x, 0) * jnp.arange(5)[:, None]).sum()),
            unsigned=lambda x, k: jnp.sort((k - 1).astype(jnp.uint32)),
            different=lambda x, k: jnp.unique(k, size=3),
            counts=lambda x, k: jnp.bincount(k[0], length=4),
        ),
        floats(5, 4),
        ints(0, 3, 5, 4),
    )


def test_layout():
    agree(
        together(
            joined=lambda a, b: jnp.concatenate([a, b, a], 1),
            stacked=lambda a, b: jnp.stack([a, a], 1),
            split=lambda a, b: jnp.split(a, 2, 1),
            flipped=lambda a, b: jnp.flip(a, 1),
            rolled=lambda a, b: jnp.roll(a, 2, 1),
            tiled=lambda a, b: jnp.tile(a, (2, 3)),
            repeated=lambda a, b: jnp.repeat(a, 3, 1),
            triangles=lambda a, b: jnp.tril(a) + jnp.triu(a, 1),
            diagonal=lambda a, b: jnp.diag(a[:, :3]),
            grid=lambda a, b: jnp.meshgrid(a[0], b[0]),
            padded=lambda a, b: lax.pad(a, 0.5, ((1, 2, 1), (-1, 1, 0))),
            unlike=lambda a, b: lax.pad(a, a[0, 0], ((1, 2, 2), (1, 0, 0))),
            d_padded=jax.grad(lambda a, b: (lax.pad(a, 0.0, ((1, 2, 1), (-1, 1, 0))) ** 2).sum()),
            linear=lambda a, b: a + jnp.linspace(0, 1, 4) + jnp.arange(4),
            turned=lambda a, b: a.T.reshape(2, 6),
            resized=lambda a, b: jax.image.resize(a, (6, 8), "bilinear"),
            nearest=lambda a, b: jax.image.resize(a, (6, 8), "nearest"),
            chosen=lambda a, b: jnp.where(a > 0, a, 0.0),
        ),
        floats(3, 4),
        floats(3, 2),
    )


def test_elements_read_by_index():
    agree(
        together(
            one=lambda x, k, n: x[1],
            last=lambda x, k, n: x[-1, ::2, None],
            back=lambda x, k, n: x[::-1],
            many=lambda x, k, n: x[k],
            two=lambda x, k, n: x[k, :, k],
            three=lambda x, k, n: x[:, k, k],
            moving=lambda x, k, n: x[n],
            part=lambda x, k, n: lax.dynamic_slice(x, (n, n, 1), (2, 3, 2)),
            clipped=lambda x, k, n: jnp.take(x, k * 9, axis=1, mode="clip"),
            filled=lambda x, k, n: jnp.take(x, k * 2 - 3, axis=0, mode="fill"),
            integers=lambda x, k, n: jnp.take(k[0], k * 9 - 2, mode="fill"),
            along=lambda x, k, n: jnp.take_along_axis(x[..., 0], k, 1),
            first=lambda x, k, n: jnp.take_along_axis(x[..., 0], k[:, :1], 1)[:, 0],
            mapped=jax.vmap(lambda x, k, n: x[k], (0, 0, None)),
            windows=lambda x, k, n: jax.vmap(lambda s: lax.dynamic_slice(x, (s, 1, 0), (2, 3, 2)))(
                k[0]
            ),
            d_many=jax.grad(lambda x, k, n: (x[k] ** 2).sum()),
            d_two=jax.grad(lambda x, k, n: (x[k, :, k] ** 2).sum()),
            d_along=jax.grad(lambda x, k, n: (jnp.take_along_axis(x[..., 0], k, 1) ** 2).sum()),
        ),
        floats(4, 5, 4),
        ints(-3, 4, 4, 2),
        jnp.int32(-2),
    )


def test_elements_written_by_index():
    def rows(x, u, k):
        return u[: k.shape[0]]

    agree(
        together(
            put=lambda x, u, k: x.at[jnp.array([0, 2, -1, 9])].set(u[:4]),
            added=lambda x, u, k: x.at[k].add(rows(x, u, k)),
            times=lambda x, u, k: x.at[k].mul(rows(x, u, k)),
            most=lambda x, u, k: x.at[k, k].max(u[:3, 0]),
            least=lambda x, u, k: x.at[1:3].min(u[:2]),
            part=lambda x, u, k: x.at[1:4:2, 2].set(u[:2, 0]),
            columns=lambda x, u, k: x.at[:, k].add(u[:, :3]),
            moved=lambda x, u, k: lax.dynamic_update_slice(x, u[:2, :2], (k[0], k[1])),
            fixed=lambda x, u, k: lax.dynamic_update_slice(x, u[:2], (9, 0)),
            mapped=lambda x, u, k: jax.vmap(lambda x, u: x.at[k].add(u[:3]))(x, u),
            each=lambda x, u, k: jax.vmap(lambda x, u, s: lax.dynamic_update_slice(x, u[:2], (s,)))(
                x, u, jnp.arange(6)
            ),
            sums=lambda x, u, k: jax.ops.segment_sum(x, jnp.array([0, 2, 2, 1, 0, 2]), 4),
            best=lambda x, u, k: jax.ops.segment_max(x, jnp.array([0, 2, 2, 1, 0, 2]), 4),
            hot=lambda x, u, k: jax.nn.one_hot(k, 5),
        ),
        floats(6, 5),
        floats(6, 5),
        jnp.array([1, 3, 1]),
    )


def test_random_numbers_are_the_same():
    draw = jax.random
    agree(
        together(
            uniform=lambda k: draw.uniform(k, (3, 4)),
            normal=lambda k: draw.normal(k, (5,)),
            masks=lambda k: draw.bernoulli(k, 0.3, (3, 4)),
            whole=lambda k: draw.randint(k, (9,), 0, 17),
            bits=lambda k: draw.bits(k, (3,)),
            bytes=lambda k: draw.bits(k, (3,), jnp.uint8),
            unsigned=lambda k: draw.randint(k, (5,), 0, 100, dtype=jnp.uint32),
            split=lambda k: [draw.uniform(q, (2,)) for q in draw.split(k, 3)],
            folded=lambda k: draw.uniform(draw.fold_in(k, 7), (2,)),
            order=lambda k: draw.permutation(k, 10),
            classes=lambda k: draw.categorical(k, jnp.arange(12.0).reshape(3, 4)),
            seeded=lambda k: draw.uniform(draw.key(5), (2,)),
            signs=lambda k: draw.rademacher(k, (5,)),
            mapped=lambda k: jax.vmap(lambda q: draw.normal(q, (2,)))(draw.split(k, 3)),
            cut=lambda k: draw.truncated_normal(k, -2, 2, (3,)),
            times=lambda k: draw.exponential(k, (3,)),
            keys=lambda k: draw.split(k),
        ),
        draw.key(3),
    )
    agree(lambda k: draw.bits(k, (4,)), draw.PRNGKey(2))
