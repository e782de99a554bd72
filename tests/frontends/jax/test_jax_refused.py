"""What cannot be imported: said at the line, all at once, never with a traceback."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp

import opstep
from opstep.frontends.missing import ImportFailed
from opstep.runtime.ir.errors import InputError

ONES = jnp.ones((3, 3))


def test_all_that_is_missing_is_listed_with_its_lines():
    def function(x):
        a = jnp.linalg.eigh(x)[0]
        b = jnp.fft.fft(x).real
        return a, b, jnp.linalg.eigh(x * 2)[0]

    with pytest.raises(ImportFailed) as failed:
        opstep.from_jax(function, ONES)
    said = str(failed.value)
    assert "eigh cannot be imported: there is no op for it (2 times)" in said
    assert "fft cannot be imported: complex numbers have no counterpart" in said
    assert "a = jnp.linalg.eigh(x)[0]" in said
    assert __file__ in said
    assert {"eigh", "fft"} <= {m.op for m in failed.value.missing}


def called_back(x):
    return jax.pure_callback(np.sin, x, x)


def printed(x):
    jax.debug.print("x is {}", x)
    return x + 1


def other_generator(x):
    return jax.random.uniform(jax.random.key(0, impl="rbg"), (3,)) + x


REFUSED = {
    "a callback": (called_back, "pure_callback cannot be imported: it calls back to Python"),
    "a generator": (other_generator, "only those of threefry are known"),
    "complex": (lambda x: (x + 1j).real, "complex64 has no counterpart"),
    "devices": (
        lambda x: jax.vmap(lambda r: jax.lax.psum(r, "i"), axis_name="j")(x),
        "unbound axis name",
    ),
    "a value that decides": (lambda x: x if x.sum() > 0 else -x, "JAX cannot trace <lambda>"),
    "an exception": (lambda x: x + {}["missing"], "KeyError: 'missing'"),
    "shapes": (lambda x: x @ jnp.ones(7), "JAX cannot trace"),
    "nothing": (lambda x: None, "gives no array"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_say_why(what):
    function, said = REFUSED[what]
    with pytest.raises(InputError, match=said) as refused:
        opstep.from_jax(function, ONES)
    if what == "a value that decides":
        assert "functools.partial" in str(refused.value)


COMPLEX = jnp.array([1 + 2j, 3.0])
ROW = jnp.array([1.0, 2.0])
USES = {
    "an operand": lambda x: (x * COMPLEX).real,
    "in a function": lambda x: jax.jit(lambda x: (x * COMPLEX).real)(x),
    "in turns": lambda x: jax.lax.fori_loop(0, 2, lambda _, x: x * COMPLEX[0].real, x),
    "in a branch": lambda x: jax.lax.cond(x[0] > 0, lambda x: x * COMPLEX.real, jnp.sin, x),
    "a result": lambda x: (x, COMPLEX),
    "a number": lambda x: abs(x + 1j),
    "an eighth": lambda x: x * jnp.array([1, 2], jnp.float8_e4m3fn).astype(jnp.float32),
}


@pytest.mark.parametrize("where", USES)
def test_constants_of_other_types_are_refused_at_the_line(where):
    with pytest.raises(ImportFailed, match="has no counterpart") as failed:
        opstep.from_jax(USES[where], ROW)
    line = USES[where].__code__.co_firstlineno
    assert (__file__, line) in {(m.file, m.line) for m in failed.value.missing}
    with pytest.warns(UserWarning, match="JAX runs <lambda> itself"):
        found = opstep.jax.debug(USES[where], fallback=True)(ROW)
    jax.tree.map(np.testing.assert_allclose, found, jax.jit(USES[where])(ROW))


def test_an_argument_of_another_type_is_refused_at_the_function():
    def function(x, y):
        return x * y.real

    with pytest.raises(ImportFailed, match="argument y cannot be imported: complex64") as failed:
        opstep.from_jax(function, ROW, COMPLEX)
    assert failed.value.missing[0][2:4] == (__file__, function.__code__.co_firstlineno)
    with pytest.warns(UserWarning, match="JAX runs partial itself"):
        found = opstep.jax.debug(functools.partial(function, ROW), fallback=True)(COMPLEX)
    np.testing.assert_allclose(found, [1, 6])


def test_what_nothing_reads_may_be_of_any_type():
    def function(x, c):
        c * COMPLEX
        jnp.fft.fft(x)
        return x + 1

    program = opstep.from_jax(jax.jit(functools.partial(function, c=COMPLEX)), ROW)
    np.testing.assert_array_equal(program.run("main", program.example)["result"], ROW + 1)


def test_prints_are_left_out_with_a_word():
    """Also in loops and functions; those who debug have them everywhere."""

    def function(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: jax.jit(printed)(x), x)

    with pytest.warns(UserWarning, match="a breakpoint shows the values") as told:
        program = opstep.from_jax(function, ONES)
    line = printed.__code__.co_firstlineno + 1
    assert [(w.filename, w.lineno) for w in told] == [(__file__, line)]
    np.testing.assert_array_equal(program.run("main", program.example)["result"], ONES + 3)


def test_arguments_are_checked():
    with pytest.raises(InputError, match="is no function"):
        opstep.from_jax(3, ONES)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="missing a required argument: 'y'"):
        opstep.from_jax(lambda x, y: x, ONES)
    with pytest.raises(InputError, match="has no argument 'params'"):
        opstep.from_jax(lambda x: x, ONES, weights="params")
    with pytest.raises(InputError, match="has no argument 4"):
        opstep.from_jax(lambda x: x, ONES, weights=[4])
    with pytest.raises(InputError, match="complex64 has no counterpart"):
        opstep.from_jax(lambda x: x, ONES + 1j)


def test_jax_is_asked_for_where_it_is_missing(monkeypatch):
    from importlib import metadata

    def absent(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(InputError, match=r"opstep\[jax\]"):
        opstep.from_jax(lambda x: x, ONES)


def test_an_index_outside_reads_nan_where_jax_reads_the_last():
    x, k = jnp.arange(4.0), jnp.array([0, 7])
    program = opstep.from_jax(lambda x, k: x[k], x, k)
    np.testing.assert_array_equal(program.run("main", program.example)["result"], [0, np.nan])
