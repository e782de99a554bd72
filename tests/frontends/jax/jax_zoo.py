"""Models of Flax and functions of JAX alone, in tiny configurations, each with its training step.

CASES["resnet"]() gives a function and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx

Case = Callable[[], tuple[Callable[..., Any], tuple]]
CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def integers(seed: int, most: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, most, shape))


def variables(model: nn.Module, *args: Any) -> Any:
    """Those of a module, without running what begins them."""
    rng = np.random.default_rng(0)

    def value(path: Any, wanted: Any) -> jax.Array:
        name = path[-1].key
        if name in ("scale", "var"):
            return jnp.asarray(rng.uniform(0.5, 1.5, wanted.shape), wanted.dtype)
        return jnp.asarray(rng.normal(size=wanted.shape) * 0.3, wanted.dtype)

    shapes = jax.eval_shape(model.init, jax.random.key(0), *args)
    return jax.tree_util.tree_map_with_path(value, shapes)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def trained(loss: Callable[..., jax.Array], params: Any, *batch: Any) -> tuple:
    """A step of AdamW, from a state that has gone some steps."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    def step(params, state, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    @jax.jit
    def begun(params):
        grads = jax.tree.map(lambda p: 0.1 * jnp.cos(17 * p), params)
        return optimizer.update(grads, optimizer.init(params), params)[1]

    return step, (params, begun(params), *batch)


# --- Flax -----------------------------------------------------------------------------------------


class MLP(nn.Module):
    widths: Sequence[int] = (16, 8, 4)

    @nn.compact
    def __call__(self, x):
        for width in self.widths[:-1]:
            x = nn.gelu(nn.Dense(width)(x))
        return nn.Dense(self.widths[-1])(x)


@case
def mlp():
    model, x = MLP(), normal(1, 5, 12)
    return model.apply, (variables(model, x), x)


@case
def mlp_step():
    model, x = MLP(), normal(1, 5, 12)

    def loss(params, x, y):
        return cross_entropy(model.apply(params, x), y)

    return trained(loss, variables(model, x), x, integers(2, 4, 5))


class NnxMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(12, 16, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.second = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x))))


@case
def nnx_mlp():
    graph, state = nnx.split(NnxMLP(nnx.Rngs(0)))
    return lambda state, x: nnx.merge(graph, state)(x), (state, normal(1, 5, 12))


@case
def nnx_step():
    """The state of the batch norm is updated by the call."""
    model = NnxMLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        value, grads = nnx.value_and_grad(lambda m: cross_entropy(m(x), y))(model)
        optimizer.update(model, grads)
        return value, nnx.split((model, optimizer))[1]

    return step, (state, normal(1, 5, 12), integers(2, 4, 5))


class Block(nn.Module):
    channels: int
    stride: int
    train: bool

    @nn.compact
    def __call__(self, x):
        norm = partial(nn.BatchNorm, use_running_average=not self.train, momentum=0.9)
        y = nn.Conv(self.channels, (3, 3), self.stride, use_bias=False)(x)
        y = nn.relu(norm()(y))
        y = norm(scale_init=nn.initializers.constant(0.5))(nn.Conv(self.channels, (3, 3))(y))
        if x.shape != y.shape:
            x = norm()(nn.Conv(self.channels, (1, 1), self.stride, use_bias=False)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    train: bool

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (5, 5), 2, padding="SAME")(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for channels, stride in ((8, 1), (12, 2)):
            x = Block(channels, stride, self.train)(x)
        x = nn.avg_pool(x, (2, 2))
        return nn.Dense(4)(x.mean(axis=(1, 2)))


@case
def resnet():
    x = normal(1, 2, 24, 24, 3)
    return ResNet(train=False).apply, (variables(ResNet(train=False), x), x)


@case
def resnet_step():
    model, x = ResNet(train=True), normal(1, 4, 24, 24, 3)
    found = variables(model, x)

    def loss(params, stats, x, y):
        logits, updated = model.apply(
            {"params": params, "batch_stats": stats}, x, mutable=["batch_stats"]
        )
        means = sum(jnp.sum(s) for s in jax.tree.leaves(updated))
        return cross_entropy(logits, y) + 1e-3 * means

    batch = found["batch_stats"], x, integers(2, 4, 4)
    return trained(loss, found["params"], *batch)


class Transformer(nn.Module):
    train: bool = False

    @nn.compact
    def __call__(self, words):
        x = nn.Embed(20, 16)(words) + self.param("places", nn.initializers.normal(), (9, 16))
        mask = nn.combine_masks(nn.make_causal_mask(words), nn.make_attention_mask(words, words))
        for _ in range(2):
            y = nn.MultiHeadDotProductAttention(4, dropout_rate=0.1, deterministic=not self.train)(
                nn.LayerNorm()(x), mask=mask
            )
            x = x + nn.Dropout(0.2, deterministic=not self.train)(y)
            y = nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.RMSNorm()(x))))
            x = x + nn.Dropout(0.2, deterministic=not self.train)(y)
        return nn.Dense(20)(nn.LayerNorm()(x))


@case
def transformer():
    words = integers(1, 20, 2, 9)
    return Transformer().apply, (variables(Transformer(), words), words)


@case
def transformer_step():
    model, words = Transformer(train=True), integers(1, 20, 2, 9)

    def loss(params, words, seed):
        rngs = {"dropout": jax.random.key(seed)}
        logits = model.apply(params, words, rngs=rngs)
        return cross_entropy(logits[:, :-1], words[:, 1:])

    return trained(loss, variables(Transformer(), words), words, jnp.uint32(7))


class Recurrent(nn.Module):
    cell: Any

    @nn.compact
    def __call__(self, x):
        scanned = nn.scan(
            self.cell, variable_broadcast="params", split_rngs={"params": False},
            in_axes=1, out_axes=1,
        )(features=6)  # fmt: skip
        carry = scanned.initialize_carry(jax.random.key(3), x[:, 0].shape)
        carry, y = scanned(carry, x)
        return nn.Dense(4)(y), carry


@case
def lstm():
    model, x = Recurrent(nn.OptimizedLSTMCell), normal(1, 3, 7, 5)
    return model.apply, (variables(model, x), x)


@case
def gru_step():
    model, x = Recurrent(nn.GRUCell), normal(1, 3, 7, 5)

    def loss(params, x, y):
        return cross_entropy(model.apply(params, x)[0], y)

    return trained(loss, variables(model, x), x, integers(2, 4, 3, 7))


class VAE(nn.Module):
    @nn.compact
    def __call__(self, x, noise):
        mean, log_variance = jnp.split(nn.Dense(6)(nn.tanh(nn.Dense(16)(x))), 2, axis=-1)
        z = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(noise, mean.shape)
        return nn.Dense(12)(nn.softplus(nn.Dense(16)(z))), mean, log_variance


@case
def vae_step():
    model, x = VAE(), jax.nn.sigmoid(normal(1, 5, 12))

    def loss(params, x, seed):
        logits, mean, log_variance = model.apply(params, x, jax.random.PRNGKey(seed))
        likely = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
        divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), -1)
        return jnp.mean(likely + divergence)

    return trained(loss, variables(model, x, jax.random.key(0)), x, jnp.uint32(7))


class Denoiser(nn.Module):
    @nn.compact
    def __call__(self, x, time):
        angles = time[:, None] * jnp.exp(jnp.linspace(0.0, -4.0, 8))
        place = nn.Dense(8)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        down = nn.silu(nn.GroupNorm(2)(nn.Conv(8, (3, 3), 2)(x))) + place[:, None, None]
        return nn.ConvTranspose(x.shape[-1], (3, 3), (2, 2))(down)


@case
def diffusion_step():
    model, x = Denoiser(), normal(1, 3, 8, 8, 2)
    alphas = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 50))

    def loss(params, x, seed):
        first, second = jax.random.split(jax.random.key(seed))
        time = jax.random.randint(first, (3,), 0, 50)
        noise = jax.random.normal(second, x.shape)
        alpha = alphas[time][:, None, None, None]
        noisy = jnp.sqrt(alpha) * x + jnp.sqrt(1 - alpha) * noise
        return jnp.mean((model.apply(params, noisy, time / 50) - noise) ** 2)

    return trained(loss, variables(model, x, jnp.zeros(3)), x, jnp.uint32(7))


# --- JAX alone ------------------------------------------------------------------------------------


@jax.custom_jvp
def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


@log1pexp.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return log1pexp(x), (1 - 1 / (1 + jnp.exp(x))) * t


@case
def custom_jvp():
    return lambda x: (log1pexp(x), jax.vmap(jax.grad(log1pexp))(x)), (normal(1, 9),)


@jax.custom_vjp
def clipped(x, most):
    return x * 2.0


clipped.defvjp(lambda x, most: (x * 2.0, most), lambda most, g: (jnp.clip(g, -most, most), None))


@case
def custom_vjp():
    def loss(x):
        return jnp.sum(clipped(x, 0.5) ** 3)

    return lambda x: (clipped(x, 0.5), jax.grad(loss)(x)), (normal(1, 9),)


@case
def per_example_gradients():
    model, x = MLP(), normal(1, 5, 12)

    def loss(params, x, y):
        return cross_entropy(model.apply(params, x[None]), y[None])

    args = variables(model, x), x, integers(2, 4, 5)
    return jax.vmap(jax.grad(loss), (None, 0, 0)), args


@case
def newton():
    """A loop whose number of turns its values decide."""

    def root(a):
        return jax.lax.while_loop(
            lambda s: jnp.max(jnp.abs(s[1] ** 2 - a)) > 1e-3,
            lambda s: (s[0] + 1, 0.5 * (s[1] + a / s[1])),
            (0, jnp.ones_like(a)),
        )

    return root, (jnp.abs(normal(1, 6)) + 0.5,)


@case
def branches():
    def choose(k, x):
        first = jax.lax.cond(x.sum() > 0, jnp.sin, lambda x: x * 3.0, x)
        return first, jax.lax.switch(k, [jnp.cos, jnp.exp, lambda x: x**2], x)

    return choose, (jnp.int32(2), normal(1, 6))


@case
def remat():
    @jax.checkpoint
    def block(w, x):
        return jnp.tanh(x @ w)

    def loss(w, x):
        return jnp.sum(block(w, block(w, x)) ** 2)

    return jax.value_and_grad(loss), (normal(1, 6, 6), normal(2, 3, 6))


@case
def scan_of_gradients():
    """Gradient descent in a scan, with a fori_loop within."""

    def descend(w, xs):
        def loss(w, x):
            return jnp.sum(jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y @ w), x))

        def turn(w, x):
            value, grad = jax.value_and_grad(loss)(w, x)
            return w - 0.1 * grad, value

        return jax.lax.scan(turn, w, xs)

    return descend, (normal(1, 4, 4), normal(2, 5, 4))


@case
def derivatives():
    """Forwards over backwards, and a Jacobian."""

    def energy(x):
        return jnp.sum(jnp.log1p(x[:-1] ** 2) * jnp.sin(x[1:]))

    return lambda x: (jax.hessian(energy)(x), jax.jacfwd(jnp.cumsum)(x)), (normal(1, 5),)


@case
def indexing():
    def moved(x, at):
        y = x.at[at].add(1.0).at[0, 1].set(5.0)
        rows = jnp.take_along_axis(y, jnp.argsort(y, axis=1), axis=1)
        window = jax.lax.dynamic_slice(y, (at[0], 0), (2, 2))
        new = jax.lax.dynamic_update_slice(y, window * 2, (0, at[1]))
        return rows, new, y[at], jnp.where(y > 0, y, 0.0).max(0), jax.lax.top_k(y, 2)

    return moved, (normal(1, 4, 5), jnp.array([2, 1]))
