"""What callers ask for: which params, by which names, with which hyperparameters, and what of it is
refused.
"""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep import optim
from opstep.runtime.ir.printer import print_module

NET = """
param conv.w: f32[2, 3] = normal(std=0.5)
param fc.w: f32[4, 2] = normal(std=0.5)
param fc.b: f32[4] = zeros()
param table: i32[3] = zeros()
param other.w: f32[4] = normal()
state seen: f32[] = 0

graph forward(x: f32[N, 3]) -> f32[N, 4] {
  h = linear(x, conv.w)
  r = tanh(h)
  y = linear(r, fc.w, fc.b)
  return y
}

graph loss(x: f32[N, 3], y: f32[N, 4]) -> f32[] {
  p = forward(x)
  l = mse_loss(p, y)
  s = mul(l, seen)
  t = add(l, s)
  return t
}

graph other(x: f32[4]) -> f32[] {
  y = mul(x, other.w)
  l = sum(y)
  return l
}
"""
INPUTS = {"x": np.ones((5, 3), np.float32), "y": np.ones((5, 4), np.float32)}


def trained(program, graph: str = "loss_step") -> set[str]:
    """Names of what a step changed."""
    before = dict(program.params)
    program.run(graph, INPUTS)
    return {n for n, v in program.params.items() if v.tobytes() != before[n].tobytes()}


@pytest.mark.parametrize(
    "wrt, changed",
    [
        (None, {"conv.w", "fc.w", "fc.b"}),
        (["fc.w"], {"fc.w"}),
        (["fc.*"], {"fc.w", "fc.b"}),
        (["*.w"], {"fc.w", "conv.w"}),
        (("conv.w", "fc.b", "conv.*"), {"fc.b", "conv.w"}),
    ],
)
def test_which_params_are_trained(wrt, changed):
    program = opstep.loads(NET).with_optimizer("loss", "sgd", wrt, lr=0.1)
    assert trained(program) == changed | {"step"}


def test_frozen_params():
    program = opstep.loads(NET).with_optimizer("loss", "sgd", lr=0.1, freeze=["conv.*", "fc.b"])
    assert trained(program) == {"fc.w", "step"}
    assert "d_conv" not in print_module(program.module)
    with pytest.raises(opstep.OpstepError, match="wrt and freeze leave nothing to train"):
        opstep.loads(NET).with_optimizer("loss", "sgd", ["fc.w"], freeze=["*"])
    with pytest.raises(opstep.OpstepError, match=r"depends on no param con\.w"):
        opstep.loads(NET).with_optimizer("loss", "sgd", freeze=["con.w"])


def test_params_that_the_loss_only_reads():
    """As constants they are not trained, and do not decay."""
    text = NET.replace(
        "  h = linear(x, conv.w)\n", "  c = stop_gradient(conv.w)\n  h = linear(x, c)\n"
    )
    assert trained(opstep.loads(text).with_optimizer("loss", "adamw")) >= {"fc.w", "fc.b"}
    assert "conv.w" not in trained(opstep.loads(text).with_optimizer("loss", "adamw"))
    with pytest.raises(opstep.OpstepError, match=r"graph loss does not depend on conv\.w"):
        opstep.loads(text).with_optimizer("loss", "adamw", ["conv.w"])


LOOP = """
param w: f32[4, 4] = normal(std=0.3)
param exact: bf16[4] = normal(std=0.3)
state seen: f32[] = 0

graph loss(x: f32[N, 4], y: f32[N, 4]) -> f32[] {
  h, t = while(x, 0, test=more, body=turn)
  b = cast(exact, dtype=f32)
  p = add(h, b)
  l = mse_loss(p, y)
  total = add(seen, l)
  seen <- total
  return l
}

graph more(h: f32[N, 4], t: i32[]) -> bool[] {
  m = less(t, 3)
  return m
}

graph turn(h: f32[N, 4], t: i32[]) -> f32[N, 4], i32[] {
  a = linear(h, w)
  b = tanh(a)
  n = add(t, 1)
  return b, n
}
"""


@pytest.mark.parametrize("scale", [None, "dynamic"])
def test_a_loss_with_a_loop_and_updates(scale):
    inputs = {"x": np.ones((3, 4), np.float32), "y": np.full((3, 4), 0.5, np.float32)}
    program = opstep.loads(LOOP).with_optimizer("loss", "adamw", lr=0.05, loss_scale=scale)
    losses = [float(program.run("loss_step", inputs)["l"]) for _ in range(20)]
    assert losses[-1] < 0.1 * losses[0]
    assert program.params["seen"] == pytest.approx(sum(losses), rel=1e-5)


def test_states_have_the_names_of_their_params():
    program = opstep.loads(NET).with_optimizer("loss", optim.Adam(), ["fc.*"], ema=0.9)
    own = [n for n in program.params if n not in opstep.loads(NET).params]
    assert own == ["step", "fc.w.m", "fc.w.v", "fc.w.ema", "fc.b.m", "fc.b.v", "fc.b.ema"]
    factored = opstep.loads(NET).with_optimizer("loss", "Adafactor", ["fc.*"])
    shapes = {n: factored.params[n].shape for n in ("fc.w.row", "fc.w.col", "fc.b.v")}
    assert shapes == {"fc.w.row": (4, 1), "fc.w.col": (1, 2), "fc.b.v": (4,)}


def test_the_program_that_it_was_made_of_stays_as_it_is():
    program = opstep.loads(NET)
    w = np.full((4, 2), 0.25, np.float32)
    program.params["fc.w"] = w
    step = program.with_optimizer("loss")
    np.testing.assert_array_equal(step.params["fc.w"], w)
    step.run("loss_step", INPUTS)
    np.testing.assert_array_equal(program.params["fc.w"], w)
    assert list(program.graphs) == ["forward", "loss", "other"]


def test_state_survives_a_change_of_the_graph():
    """What kept its name and type goes on; what is new, or has another type, begins."""
    old = opstep.loads(NET).with_optimizer("loss", "adam")
    for _ in range(5):
        old.run("loss_step", INPUTS)
    edited = NET.replace("fc.w: f32[4, 2]", "fc.w: f32[4, 7]").replace(
        "conv.w: f32[2,", "conv.w: f32[7,"
    )
    edited = edited.replace("linear(r, fc.w, fc.b)", "linear(r, fc.w, last.b)")
    edited = edited.replace("param fc.b", "param last.b")
    new = opstep.loads(edited.replace("tanh", "relu")).with_optimizer("loss", "adam", clip_norm=1.0)
    fresh = dict(new.params)
    loaded = new.params.load(old.params, strict=False)
    assert loaded.missing == ("last.b", "last.b.m", "last.b.v")
    assert loaded.unexpected == ("fc.b", "fc.b.m", "fc.b.v")
    assert loaded.mismatched == ("conv.w", "fc.w", "conv.w.m", "conv.w.v", "fc.w.m", "fc.w.v")
    assert new.params["step"] == 5
    np.testing.assert_array_equal(new.params["other.w"], old.params["other.w"])
    for name in (*loaded.missing, *loaded.mismatched):
        np.testing.assert_array_equal(new.params[name], fresh[name])
    new.run("loss_step", INPUTS)


def test_loading_strictly_is_all_or_nothing():
    old = opstep.loads(NET).with_optimizer("loss", "adam")
    old.run("loss_step", INPUTS)
    new = opstep.loads(NET).with_optimizer("loss", "sgd", momentum=0.9)
    before = dict(new.params)
    with pytest.raises(opstep.OpstepError) as told:
        new.params.load(old.params)
    assert "nothing is given for conv.w.momentum, fc.w.momentum" in str(told.value)
    assert "there is no conv.w.m, conv.w.v" in str(told.value)
    assert "strict=False" in told.value.diagnostics[0].hint
    wrong = {**before, "conv.w": np.zeros(3, np.float32)}
    with pytest.raises(opstep.OpstepError, match=r"conv.w is f32\[2, 3\], not f32\[3\]"):
        new.params.load(wrong)
    for name, value in new.params.items():
        np.testing.assert_array_equal(value, before[name])
    same = opstep.loads(NET).with_optimizer("loss", "adam", lr=0.5)
    assert same.params.load(old.params) == ((), (), ())


def test_names_that_the_program_has_already():
    """Params, graphs and symbols may be called as the step would call its own."""
    taken = NET
    for name in ("m", "p", "lr", "t", "keep", "share", "new_p", "grad_norm", "A"):
        taken += f"param {name}: f32[] = 1\n"
    taken += "graph adamw_2d(x: f32[]) -> f32[] {\n  return x\n}\n"
    taken += "graph loss_grad(x: f32[]) -> f32[] {\n  return x\n}\n"
    taken = taken.replace("graph loss(x: f32[N, 3], y", "graph loss(x: f32[A, 3], fc_w").replace(
        "y: f32[N, 4]) -> f32[] {", "y: f32[N, 4]) -> f32[] {"
    )
    taken = taken.replace("fc_w: f32[N, 4])", "fc_w: f32[A, 4])").replace("(p, y)", "(q, fc_w)")
    taken = taken.replace("  p = forward", "  q = forward").replace(
        "  t = add(l, s)\n  return t", "  u = add(l, s)\n  return u"
    )
    program = opstep.loads(taken).with_optimizer(
        "loss", "adamw", ["conv.w", "fc.*"], clip_norm=1.0, ema=0.9
    )
    plain = opstep.loads(NET).with_optimizer("loss", "adamw", clip_norm=1.0, ema=0.9)
    for _ in range(2):
        program.run("loss_step", {"x": INPUTS["x"], "fc_w": INPUTS["y"]})
        plain.run("loss_step", INPUTS)
    for name in ("conv.w", "fc.b", "fc.w.v", "fc.w.ema"):
        np.testing.assert_array_equal(program.params[name], plain.params[name])


def test_names_in_backquotes():
    quoted = (
        NET.replace("conv.w", "`0.weight`").replace("fc.w", "`naïve-w`").replace("fc.b", "`in`")
    )
    program = opstep.loads(quoted).with_optimizer("loss", "adam", loss_scale="dynamic", ema=0.5)
    assert {"0.weight.m", "naïve-w.v", "in.ema"} <= set(program.params)
    assert {"0.weight", "naïve-w", "in"} <= trained(program)
    assert print_module(opstep.loads(print_module(program.module)).module) == print_module(
        program.module
    )


def test_two_losses_have_two_steps():
    program = opstep.loads(NET).with_optimizer("loss", "adam", ["fc.*"])
    with pytest.raises(opstep.OpstepError, match="graph loss_step updates state step") as told:
        program.with_optimizer("other", "adam")
    assert told.value.diagnostics[0].hint.startswith("in Python step='other.step'")
    both = program.with_optimizer("other", "adam", step="other.step")
    assert [n for n in both.graphs if n.startswith("adam")].count("adam_1d") == 1  # shared
    assert "adam_rates_1" in both.graphs  # another counter
    both.run("loss_step", INPUTS)
    both.run("other_step", {"x": np.ones(4, np.float32)}, steps=3)
    assert (both.params["step"], both.params["other.step"]) == (1, 3)
    shared = program.with_optimizer("other", "adam", step="step")
    shared.run("loss_step", INPUTS)
    shared.run("other_step", {"x": np.ones(4, np.float32)})
    assert shared.params["step"] == 2


def test_twelve_layers_share_their_graphs():
    params = "".join(
        f"param layers.{k}.w: f32[4, 4] = normal(std=0.5)\nparam layers.{k}.b: f32[4] = zeros()\n"
        for k in range(12)
    )
    body = "".join(f"  h{k + 1} = linear(h{k}, layers.{k}.w, layers.{k}.b)\n" for k in range(12))
    text = f"{params}graph loss(h0: f32[N, 4]) -> f32[] {{\n{body}  l = sum(h12)\n  return l\n}}\n"
    program = opstep.loads(text).with_optimizer("loss", "adamw")
    written = print_module(program.module)
    calls = [line for line in written.splitlines() if "= adamw_" in line]
    assert len(calls) == 26  # one for each param, and two for scalars that they share
    assert [n for n in program.graphs if "adamw" in n] == [
        "adamw_rates",
        "adamw_keep",
        "adamw_2d",
        "adamw_1d",
    ]
    program.run("loss_step", {"h0": np.ones((2, 4), np.float32)})


REFUSED = [
    (("adam",), {"lr": -1.0}, "lr is -1.0; it can be a number from 0"),
    (("adam",), {"lr": float("nan")}, "lr is nan"),
    (("adam",), {"lr": True}, "lr is True"),
    (("adam",), {"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0; it can be from 0 to less than 1"),
    (("adam",), {"betas": 0.9}, "betas is 0.9; it can be two numbers"),
    (("adam",), {"betas": "99"}, "betas is '99'; it can be two numbers"),
    (("adam",), {"eps": -1e-8}, "eps is -1e-08"),
    (("adam",), {"weight_decay": -0.1}, "weight_decay is -0.1"),
    (("adam",), {"weight_decay": {"*": "x"}}, r"weight_decay\['\*'\] is 'x'"),
    (("adam",), {"weight_decay": {"fc.x": 0.1}}, "no param that is trained fits fc.x(.|\n)*fc.w"),
    (("sgd",), {"momentum": 1.0}, "momentum is 1.0"),
    (("sgd",), {"nesterov": True}, "nesterov wants a momentum above 0"),
    (("sgd",), {"nesterov": 1}, "nesterov is 1; it can be True or False"),
    (("rmsprop",), {"alpha": 1.5}, "alpha is 1.5"),
    (("adafactor",), {"beta2_decay": 0.8}, "beta2_decay is 0.8"),
    (("adafactor",), {"d": 0.5}, "d is 0.5"),
    (("adafactor",), {"eps": 1e-8}, "eps"),
    (("addam",), {}, "there is no optimizer addam(.|\n)*did you mean adam"),
    ((None,), {}, "optimizer is None; it can be one of sgd"),
    (("adam",), {"beta": (0.9, 0.9)}, "adam has no hyperparameter beta(.|\n)*did you mean betas"),
    (("adam",), {"clipnorm": 1.0}, "adam has no hyperparameter clipnorm(.|\n)*clip_norm"),
    ((optim.Adam(),), {"lr": 0.1}, "lr beside an optimizer that has its own"),
    (("adam",), {"clip_norm": 0}, "clip_norm is 0; it can be a number above 0"),
    (("adam",), {"clip_value": -1}, "clip_value is -1"),
    (("adam",), {"clip_value": 1, "clip_norm": 1}, "gradients are clipped in one way"),
    (("adam",), {"ema": 1.0}, "ema is 1.0"),
    (("adam",), {"loss_scale": 128}, "loss_scale is 128; it can be 'dynamic'"),
    (("adam",), {"master_weights": None}, "master_weights is None"),
    (("adam",), {"step": 3}, "step is 3; it can be the name of a state"),
    (("adam",), {"step": "seen"}, r"seen is a state of type f32\[\]"),
    (("adam",), {"lr": "rate"}, "lr: there is no state or graph rate"),
    (("adam",), {"lr": "forward"}, "lr: graph forward is to have no inputs"),
    (("adam",), {"lr": "fc.w"}, r"lr: fc.w is f32\[4, 2\]"),
    (("adam",), {"step": ""}, "step is ''; it can be the name of a state"),
    (("adam",), {"step": "a`b"}, "step is 'a`b'"),
    (("adam",), {"name": "forward"}, "there is a graph or an op forward already"),
    (("adam",), {"name": "relu"}, "there is a graph or an op relu already"),
    (("adam",), {"name": "mlp"}, "there is a graph or an op mlp already"),
    (("adam",), {"name": "my step"}, "name is 'my step'; it can be letters"),
    (("adam",), {"name": "graph"}, "name is 'graph'"),
    (("adam", "fc.w"), {}, "wrt is the string 'fc.w'"),
    (("adam", []), {}, "wrt leaves nothing to train"),
    (("adam", ["fc.x"]), {}, "depends on no param fc.x(.|\n)*fc.w"),
    (("adam", ["seen"]), {}, "seen is a state: only params are trained"),
    (("adam", ["table"]), {}, r"table is i32\[3\]: only floats"),
    (("adam", ["other.w"]), {}, "graph loss does not depend on other.w"),
    (("adam", ["x"]), {}, "depends on no param x"),
]  # fmt: skip


@pytest.mark.parametrize("asked, options, message", REFUSED, ids=[m[:40] for *_, m in REFUSED])
def test_what_is_refused(asked, options, message):
    program = opstep.loads(NET)
    with pytest.raises(opstep.OpstepError, match=message):
        program.with_optimizer("loss", *asked, **options)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: optim.Cosine(0.1, 10, warmup=10), "a warm-up of 10 steps leaves none of 10"),
        (lambda: optim.Cosine(0.1, 0), "steps is 0; it can be a whole number from 1"),
        (lambda: optim.Linear(0.1, True), "steps is True"),
        (lambda: optim.Constant(-0.1), "lr is -0.1"),
        (lambda: optim.Constant(0.1, start=0.01), "start is where a warm-up begins"),
        (lambda: optim.Constant(0.1, warmup=-1), "warmup is -1"),
        (lambda: optim.Step(0.1, 0), "every is 0"),
        (lambda: optim.LossScale(initial=0.0), "initial is 0.0"),
        (lambda: optim.LossScale(backoff=1.0), "backoff is 1.0"),
        (lambda: optim.LossScale(growth=0.5), "growth is 0.5"),
        (lambda: optim.LossScale(interval=0), "interval is 0"),
    ],
)
def test_schedules_and_scales_that_are_refused(make, message):
    with pytest.raises(opstep.OpstepError, match=message):
        make()


def test_a_loss_that_is_no_scalar_or_has_no_gradient():
    program = opstep.loads(NET)
    with pytest.raises(opstep.OpstepError, match="must be a float scalar"):
        program.with_optimizer("forward", "sgd")
    with pytest.raises(opstep.OpstepError, match="its first result is to be a float scalar"):
        program.with_optimizer("forward", "sgd", loss_scale="dynamic")
    with pytest.raises(opstep.OpstepError, match="there is no graph los"):
        program.with_optimizer("los", "sgd")
    nothing = opstep.loads("graph g(x: f32[]) -> f32[] {\n  return x\n}\n")
    with pytest.raises(opstep.OpstepError, match="depends on no param of floats"):
        nothing.with_optimizer("g", "sgd")


def test_a_state_of_another_type_is_in_the_way():
    program = opstep.loads(NET + "param fc.w.m: f32[4] = zeros()\n")
    with pytest.raises(opstep.OpstepError, match=r"adam keeps a state fc.w.m: f32\[4, 2\]") as told:
        program.with_optimizer("loss", "adam")
    assert told.value.diagnostics[0].hint == "the program has a param fc.w.m: f32[4]; rename it"


def test_a_value_is_called_step():
    text = NET.replace("  p = forward(x)\n", "  step = forward(x)\n").replace("(p, y)", "(step, y)")
    program = opstep.loads(text)
    with pytest.raises(opstep.OpstepError, match="graph loss has a value step") as told:
        program.with_optimizer("loss", "adam", loss_scale="dynamic")
    assert told.value.diagnostics[0].hint.startswith("rename it; in Python step='loss.step'")
    named = program.with_optimizer("loss", "adam", loss_scale="dynamic", step="loss.step")
    named.run("loss_step", INPUTS)
    assert named.params["loss.step"] == 1 and named.params["loss.scale"] == 65536


def test_a_counter_that_the_loss_reads():
    """As dropout reads it: the step counts it on."""
    text = NET.replace("state seen", "state step: i64[] = 3\nstate seen").replace(
        "  r = tanh(h)", "  d = dropout(h, step, p=0.5, seed=1)\n  r = tanh(d)"
    )
    program = opstep.loads(text).with_optimizer("loss", "sgd", lr=0.0)
    drawn = {float(program.run("loss_step", INPUTS)["t"]) for _ in range(4)}
    assert len(drawn) > 1 and program.params["step"] == 7
    counting = text.replace("  return t", "  n = add(step, 1)\n  step <- n\n  return t")
    with pytest.raises(opstep.OpstepError, match="graph loss updates state step"):
        opstep.loads(counting).with_optimizer("loss", "sgd", step="step")


class SignSGD(optim.Optimizer):
    name = "signsgd"
    title = "signSGD"
    text = """
        direction = sign(g)
        change = mul(direction, lr)
        new_m = add(m, g)
        new_p = sub(p, change)
        """

    def states(self, t):
        return {"m": t}

    def update(self, t, decays):
        return self.text


def test_an_optimizer_of_ones_own():
    program = opstep.loads(NET).with_optimizer("loss", SignSGD(lr=0.5), clip_value=1.0)
    before = program.params["fc.w"]
    program.run("loss_step", INPUTS)
    moved = np.abs(program.params["fc.w"] - before)
    np.testing.assert_allclose(moved, 0.5, rtol=1e-5)
    assert np.abs(program.params["fc.w.m"]).max() > 0


@pytest.mark.parametrize(
    "text, message",
    [
        ("new_m = add(m, g)\nnew_p = sub(p, slope)", "there is no value slope\n    new_p = sub"),
        ("new_m = add(m, g", r"signsgd_2d.opg:3:14: error: the \( is not closed"),
        ("new_m = sum(g)\nnew_p = add(p, new_m)", r"returns f32.*, but new_m is f32\[\]"),
    ],
)
def test_a_formula_that_is_wrong(text, message, monkeypatch):
    monkeypatch.setattr(SignSGD, "text", text)
    with pytest.raises(opstep.OpstepError, match=message):
        opstep.loads(NET).with_optimizer("loss", SignSGD())
