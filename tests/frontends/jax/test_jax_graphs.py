"""What imported functions look like: names, lines, graphs, named tensors, symbols."""

from __future__ import annotations

import functools
import inspect
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax_agreement import agree

import opstep
from opstep.runtime.ir.graph import Apply
from opstep.runtime.ir.printer import print_module

ONES = jnp.ones((2, 3))


def text(program):
    return print_module(program.module)


def lines(program, graph="main"):
    """By result: callee, and the lines of this file that it is from."""
    found = {}
    for s in program.graph(graph).body:
        if isinstance(s, Apply) and s.at:
            found[s.results[0].name.text] = s.callee.text, [f.line for f in s.at.frames]
    return found


class Batch(NamedTuple):
    image: jax.Array
    label: jax.Array


def dense(layer, x):
    y = x @ layer["kernel"]
    return y + layer["bias"]


def mlp(params, x):
    h = jnp.tanh(dense(params["first"], x))
    out = dense(params["last"], h)
    return out  # noqa: RET504


def weights():
    return {
        "first": {"kernel": jnp.ones((3, 4)) * 0.1, "bias": jnp.zeros(4)},
        "last": {"kernel": jnp.ones((4, 2)) * 0.2, "bias": jnp.ones(2)},
    }


def line_of(function, part):
    source, start = inspect.getsourcelines(function)
    return start + next(k for k, t in enumerate(source) if part in t)


def test_values_are_called_after_variables_and_know_their_lines():
    program = agree(mlp, weights(), ONES, weights="params")
    first, last = line_of(mlp, "h ="), line_of(mlp, "out =")
    product, total = line_of(dense, "y ="), line_of(dense, "return")
    assert lines(program) == {
        "y": ("matmul", [product, first]),
        "add": ("add", [total, first]),
        "h": ("tanh", [first]),
        "y_2": ("matmul", [product, last]),
        "out": ("add", [total, last]),
    }
    assert list(program.params) == [
        "params.first.bias",
        "params.first.kernel",
        "params.last.bias",
        "params.last.kernel",
    ]
    assert list(program.example) == ["x"]


def test_arguments_of_any_structure():
    def function(batch, *rest, scale, **more):
        return {"sum": batch.image.sum() + rest[0], "pair": (batch.label * scale, more["last"])}

    program = agree(
        function,
        Batch(ONES, jnp.arange(2)),
        1.5,
        scale=2,
        last=jnp.ones(1),
    )
    taken = [b.name.text for b in program.graph("main").inputs]
    assert taken == ["batch_image", "batch_label", "rest_0", "last", "scale"]
    result = program.run("main", program.example)
    assert set(result) == {"result_sum", "result_pair_0", "result_pair_1"}


def test_results_have_the_names_that_are_returned():
    def function(x):
        total, parts = x.sum(), {"a": x, "b": x}
        return total, parts, x * 2

    found = opstep.from_jax(function, ONES).run("main", {"x": ONES})
    assert list(found) == ["total", "parts_a", "parts_b", "result_2"]


def test_what_a_function_closes_over_is_a_named_tensor():
    params = weights()
    program = agree(lambda x: mlp(params, x), ONES)
    assert "params.first.kernel" in program.params
    program = agree(functools.partial(mlp, params), ONES)
    assert len(list(program.params)) == 4


def test_constants_are_text_where_that_is_short():
    table = np.array([3.0, 1.0, 2.0], np.float32)
    program = agree(lambda x: x * jnp.full((2, 3), 0.1) + jnp.arange(3) + jnp.asarray(table), ONES)
    assert "mul(x, 0.1)" in text(program)
    assert list(program.params) == ["constant"]


def test_functions_under_jit_are_graphs_and_equal_ones_are_one():
    layer = jax.jit(dense)

    @jax.jit
    def network(params, x):
        x = layer(params["first"], x)
        x = layer(params["last"], x)
        return jnp.where(x > 0, x, 0)

    program = agree(
        network,
        {"first": weights()["first"], "last": {**weights()["first"], "kernel": jnp.ones((4, 4))}},
        ONES,
        weights="params",
    )
    assert list(program.graphs) == ["main", "dense", "dense_2"]
    same = {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)}
    program = agree(network, {"first": same, "last": same}, ONES, weights="params")
    assert list(program.graphs) == ["main", "dense"]
    assert text(program).count("= dense(") == 2
    first = program.graph("dense").body[0]
    assert [f.line for f in first.at.frames] == [line_of(dense, "y =")]


def test_scopes_are_modules():
    def function(x):
        with jax.named_scope("block"), jax.named_scope("norm"):
            x = x - x.mean()
        return x * 2

    program = agree(function, ONES)
    assert [s.at.module for s in program.graph("main").body[:-1]] == ["block/norm"] * 2 + [""]


def test_a_gradient_has_the_lines_of_what_it_is_of():
    def loss(params, x):
        return (mlp(params, x) ** 2).mean()

    program = agree(jax.value_and_grad(loss), weights(), ONES, weights="params")
    products = [v for v in lines(program).values() if v[0] == "matmul"]
    assert {v[1][0] for v in products} == {line_of(dense, "y =")}
    assert "transpose(" not in text(program)  # products read the other way round


def test_recomputed_functions_are_graphs():
    @jax.checkpoint
    def block(x):
        return jnp.sin(jnp.sin(x) * x)

    program = agree(jax.grad(lambda x: block(x).sum()), ONES)
    assert "block_backward" in program.graphs


def test_sizes_may_be_symbols():
    rows, columns = jax.export.symbolic_shape("rows, columns")

    def function(x):
        shares = jax.nn.softmax(x.reshape(-1), 0)
        return shares.sum() / x.shape[0] + jnp.arange(x.shape[0] * 2).sum(), x[1:]

    given = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
    program = opstep.from_jax(function, given)
    assert str(program.graph("main").inputs[0].type) == "f32[rows, columns]"
    assert not program.example
    with pytest.raises(opstep.OpstepError, match="an input must have columns alone"):
        opstep.from_jax(function, jax.ShapeDtypeStruct((rows, 2 * columns), jnp.float32))


def test_a_symbol_is_bound_by_each_run():
    (rows,) = jax.export.symbolic_shape("rows")

    def function(x):
        total = x.sum(0) / x.shape[0] + jnp.arange(x.shape[0]).sum()
        return total  # noqa: RET504

    program = opstep.from_jax(function, jax.ShapeDtypeStruct((rows, 2), jnp.float32))
    for n in (1, 5):
        x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        np.testing.assert_allclose(program.run("main", {"x": x})["total"], function(jnp.array(x)))


def test_what_is_no_array_is_a_constant():
    def function(x, train, mode, names=None):
        return x * 2 if train and mode == "fast" else x

    program = agree(lambda x: function(x, True, "fast"), ONES)
    found = opstep.from_jax(function, ONES, True, "fast")
    assert [b.name.text for b in found.graph("main").inputs] == ["x"]
    assert "mul(x, 2.0)" in text(found)
    assert "mul(x, 2.0)" in text(program)


def test_a_random_mask_is_that_of_jax():
    def dropped(x, key):
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(keep, x / 0.5, 0)

    program = agree(dropped, ONES, jax.random.key(7))
    assert "threefry2x32" in program.graphs
    assert str(program.graph("main").inputs[1].type) == "i32[2]"


def test_a_program_can_be_saved_and_trained(tmp_path):
    def loss(params, x, y):
        loss = ((mlp(params, x) - y) ** 2).mean()
        return loss  # noqa: RET504

    program = opstep.from_jax(loss, weights(), ONES, jnp.zeros((2, 2)), weights="params")
    program.save(tmp_path / "loss.opg")
    program = opstep.load(tmp_path / "loss.opg")
    step = program.with_optimizer("main", "sgd", lr=0.1)
    first = step.run("main_step", program.example)["loss"]
    assert step.run("main_step", program.example)["loss"] < first


def test_what_jax_spells_out_is_one_op_again():
    def function(x):
        kept = x.sum(1, keepdims=True)
        return jax.nn.softmax(x), jax.nn.log_softmax(x, 0), jax.nn.relu(x), x.mean(), kept + 1

    program = agree(function, ONES)
    ops = [s.callee.text for s in program.graph("main").body[:-1]]
    assert sorted(ops) == ["add", "log_softmax", "mean", "relu", "softmax", "sum"]
    assert "sum(x, axes=[1], keepdims=true)" in text(program)


def test_parts_of_an_idiom_that_others_read_stay():
    def function(x):
        largest = x.max(-1, keepdims=True)
        powers = jnp.exp(x - largest)
        return powers / powers.sum(-1, keepdims=True), largest

    program = agree(function, ONES)
    assert "softmax" not in text(program)
    assert "max(x, axes=[1], keepdims=true)" in text(program)


def test_gelu_is_one_op_where_nothing_else_reads_its_parts():
    x = jnp.linspace(-4, 4, 6).reshape(2, 3)
    assert 'gelu(x, approximate="tanh")' in text(agree(jax.nn.gelu, x))
    steeper = agree(lambda x: 0.5 * x * (1 + jnp.tanh(0.8 * (x + 0.044715 * x**3))), x)
    other = agree(lambda x, y: x * (0.5 * (1 + jnp.tanh(0.7978846 * (y + 0.044715 * y**3)))), x, -x)
    assert "gelu(" not in text(steeper) + text(other)


def test_each_turn_of_a_loop_names_its_values():
    def function(x):
        for _ in range(2):
            h = jnp.tanh(x)
            x = h * 2
        return x

    program = agree(function, ONES)
    assert list(lines(program)) == ["h", "x_3", "h_2", "x_2"]


def test_an_object_that_is_called_has_its_arrays():
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    program = opstep.from_jax(layer, ONES)
    assert sorted(program.params) == ["self.bias.value", "self.kernel.value"]
    found = program.run("main", program.example)["result"]
    np.testing.assert_allclose(found, layer(ONES), 1e-6)
