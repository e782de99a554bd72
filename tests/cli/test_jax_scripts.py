"""Scripts with functions of JAX's: run, hunted and debugged."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("jax")

STEP = """\
import jax
import jax.numpy as jnp
import opstep

def model(params, x):
    hidden = jnp.tanh(x @ params["w"])
    return hidden @ params["v"]

def loss_of(params, x, mask):
    error = (model(params, x) - 1.0) ** 2
    total = (error * mask).sum()
    count = mask.sum()
    return total / count

@opstep.jax.debug
@jax.jit
def step(params, x, mask):
    loss, grads = jax.value_and_grad(loss_of)(params, x, mask)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

params = {"w": jnp.eye(3), "v": jnp.ones(3)}
for k in range(3):
    mask = jnp.full(4, k != 2, jnp.float32)
    params, loss = step(params, jnp.ones((4, 3)), mask)
    print("step", k, round(float(loss), 3))
"""


@pytest.fixture(autouse=True)
def fresh_findings():
    from opstep.frontends.scripts.watching import told

    told.clear()
    yield
    told.clear()


# --- hunt -----------------------------------------------------------------------------------------


def test_a_hunt_ends_at_the_line_that_made_it(cli, script):
    outcome = cli("hunt", script(STEP))
    assert outcome.code == 5, outcome.err
    told, _, report = outcome.out.partition("train.py:24: ")
    assert told.split("\n")[:2] == ["step 0 1.651", "step 1 0.178"] and "step 2" not in told
    assert report.startswith("params, loss = step(params, jnp.ones((4, 3)), mask)\n")
    assert ", train.py:13: 0 / 0" in report and "total = 0, count = 0" in report


# Each is a function of x, and the line, the op and the reason of what it makes of the given.
NANS = {
    "log of zero": (
        """
        p = jax.nn.relu(x)
        return -(jnp.log(p) * 0.5).mean()
        """,
        "[1.0, -2.0]", 2, "log of 0",
    ),
    "a masked mean of nothing": (
        """
        mask = x > 5
        total = jnp.where(mask, x, 0).sum()
        return total / mask.sum()
        """,
        "[1.0, 2.0]", 3, "0 / 0",
    ),
    "the gradient of a norm at zero": (
        """
        length = lambda x: jnp.sqrt((x * x).sum())
        return jax.grad(length)(x)
        """,
        "[0.0, 0.0]", 1, "",
    ),
    "an overflow in f16": (
        """
        half = x.astype(jnp.float16)
        return jnp.exp(half).sum()
        """,
        "[1.0, 12.0]", 2, "overflow",
    ),
    "a norm without an epsilon": (
        """
        centred = x - x.mean()
        return centred / x.std()
        """,
        "[3.0, 3.0]", 2, "0 / 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NANS)
def test_where_nans_are_born(cli, script, name):
    body, given, line, reason = NANS[name]
    head = "import jax, jax.numpy as jnp, opstep\n@opstep.jax.debug\n@jax.jit\ndef f(x):"
    healthy = "f(jnp.array([6.0, 7.5]))\nprint('healthy')\n"
    text = (
        head + body.replace("\n        ", "\n    ").rstrip() + f"\n{healthy}f(jnp.array({given}))\n"
    )
    outcome = cli("hunt", script(text))
    assert outcome.code == 5, outcome.err
    first = outcome.out.partition("origin: ")[2].partition("\n")[0]
    print(outcome.out)
    assert outcome.out.startswith("healthy\n")
    assert f", train.py:{4 + line}" in first and reason in first


def test_functions_of_jit_are_seen_without_a_word_of_ours(cli, script):
    plain = STEP.replace("import opstep\n", "").replace("@opstep.jax.debug\n", "")
    outcome = cli("hunt", script(plain))
    assert outcome.code == 5 and ", train.py:12: 0 / 0" in outcome.out
    healthy = plain.replace("k != 2", "True")
    outcome = cli("hunt", script(healthy))
    assert outcome.code == 0 and "step 2" in outcome.out
    assert outcome.err == "train.py: 3 calls of 1 function, no NaN or infinity came out\n"
    outcome = cli("hunt", "--module", "other", script(plain))
    assert outcome.code == 2 and "step 2 nan" in outcome.out
    assert "no module that was called matches --module other; there are step" in outcome.err


def test_below_jit(cli, script):
    """Without the command that sees jit, JAX calls back."""
    below = STEP.replace("@opstep.jax.debug\n@jax.jit", "@jax.jit\n@opstep.jax.debug(hunt=True)")
    name = script(below)
    ended = subprocess.run([sys.executable, name], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "step 2 nan" in ended.stdout
    assert "NumericsWarning: step: step 2 is bad" in ended.stderr
    assert "from " in ended.stderr and "train.py:13: 0 / 0" in ended.stderr
    outcome = cli("hunt", name)
    assert outcome.code == 5 and ", train.py:13: 0 / 0" in outcome.out


def test_as_json(cli, script):
    outcome = cli("hunt", "--json", script(STEP))
    (found,) = outcome.json["findings"]
    assert outcome.code == 5 and (found["graph"], found["step"]) == ("step", 2)


@pytest.mark.slow
def test_neither_framework_is_imported_for_the_other(script, tmp_path):
    name = script("import jax, sys\nassert 'torch' not in sys.modules\njax.jit(abs)(1.0)\n")
    line = [sys.executable, "-m", "opstep", "run", name]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    script("import sys, torch\nassert 'jax' not in sys.modules\ntorch.nn.Tanh()(torch.ones(2))\n")
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


# --- run, debug -----------------------------------------------------------------------------------


def test_runs_are_recorded(cli, script):
    outcome = cli("run", "-w", "runs.db", script(STEP))
    assert outcome.code == 0 and "step 2 nan" in outcome.out
    assert "3 steps" in outcome.err and "div gives loss" in outcome.err
