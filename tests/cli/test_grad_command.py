"""``opstep grad``."""

from __future__ import annotations

import pytest

import opstep
from opstep.runtime.ir.printer import print_module

NET = """\
param conv1.w: f32[4, 1, 3, 3] = normal(std=0.2)
param conv2.w: f32[4, 4, 3, 3] = normal(std=0.2)
param fc.w: f32[10, 64] = normal(std=0.1)
param other: f32[4] = zeros()
state step: i64[] = 0

graph scores(x: f32[N, 1, 8, 8]) -> f32[N, 10] {
  c1 = conv2d(x, conv1.w)
  r1 = relu(c1)
  c2 = conv2d(r1, conv2.w)
  r2 = relu(c2)
  flat = flatten(r2, start=1)
  y = linear(flat, fc.w)
  return y
}

graph loss(x: f32[N, 1, 8, 8], label: i32[N]) -> f32[] {
  y = scores(x)
  l = softmax_cross_entropy(y, label)
  next = add(step, 1)
  step <- next
  return l
}

graph rounded(x: f32[N, 1, 8, 8]) -> f32[] {
  y = scores(x)
  r = outside(y)
  l = mean(r)
  return l
}

graph outside(y: f32[N, M]) -> f32[N, M] {
  r: f32[N, M] = torch.aten.log1p(y)
  return r
}
"""


@pytest.fixture
def net(write):
    return write("net.opg", NET)


def gradient(text: str) -> str:
    """The graph that was written, without the program before it."""
    return text[text.index("graph loss_grad(") :]


def test_the_text_is_a_program_with_the_gradient(cli, net):
    outcome = cli("grad", net, "--graph", "loss")
    assert (outcome.code, outcome.err) == (0, "")
    program = opstep.loads(outcome.out)
    assert print_module(program.module) == outcome.out
    assert outcome.out.startswith(NET)
    *_, last = gradient(outcome.out).splitlines()[:-1]
    assert last == "  return l, d_conv1_w, d_conv2_w, d_fc_w"  # nothing depends on `other`


def test_what_is_frozen_takes_no_work(cli, net):
    whole = gradient(cli("grad", net, "-g", "loss").out)
    frozen = gradient(cli("grad", net, "-g", "loss", "--freeze", "conv1.*, conv2.*").out)
    assert "d_c1" in whole and "conv2d_weight_grad" in whole
    assert [line.split(" = ")[0].strip() for line in frozen.splitlines() if " d_" in line] == [
        "d_l", "d_y", "d_fc_w", "return l, d_fc_w",
    ]  # fmt: skip


def test_lines_name_the_lines_that_they_were_written_for(cli, net):
    lines = gradient(cli("grad", net, "-g", "loss", "--wrt", "conv2.w").out).splitlines()
    written = [line.strip() for line in NET.splitlines()]
    at = f'"{net}":{written.index("r2 = relu(c2)") + 1}, {written.index("y = scores(x)") + 1}'
    assert f"  r2 = relu(c2) at {at}" in lines
    assert any(
        line.startswith("  d_c2 = where(") and line.endswith(f'{at} in "backward"')
        for line in lines
    )
    assert not any("d_r1" in line or "conv1_w" in line for line in lines)


def test_a_file_is_written_whole(cli, net, tmp_path):
    outcome = cli("grad", net, "-g", "loss", "--wrt", "fc.w,conv1.w", "-o", "step.opg")
    assert outcome.err == "step.opg: graph loss_grad with 2 derivatives\n"
    program = opstep.load(tmp_path / "step.opg")
    assert program.graphs["loss_grad"].results[1:] == tuple(
        program.module.tensors[n].type for n in ("fc.w", "conv1.w")
    )
    again = cli("grad", "step.opg", "-g", "loss")
    assert again.code == 2
    assert "there is a graph loss_grad already\nhint: give another --name" in again.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-g", "loss", "--wrt", "other"], 2, "loss does not depend on other"),
        (["-g", "loss", "--wrt", "oth*"], 2, "loss does not depend on other"),
        (["-g", "loss", "--wrt", "othr"], 2, "hint: did you mean other?"),
        (["-g", "loss", "--wrt", "z*"], 2, "no param of floats is called z*\nhint: there are: c"),
        (["-g", "loss", "--freeze", "convv1.w"], 2, "hint: did you mean conv1.w"),
        (["-g", "loss", "--wrt", "fc.*", "--freeze", "*"], 2, "all that derivatives are by is"),
        (["-g", "loss", "--wrt", "label"], 2, "label is i32[N]: only floats have derivatives"),
        (["-g", "scores"], 1, "net.opg:14:3: error: the first result must be a float scalar"),
        (["-g", "los"], 2, "there is no graph los"),
        (["-g", "rounded"], 1, "is on the way from conv1.w to the loss"),
    ],
)
def test_what_cannot_be_done(cli, net, words, code, message):
    outcome = cli("grad", net, *words)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err


def test_the_way_to_an_op_without_a_gradient_is_shown(cli, net):
    message = cli("grad", net, "-g", "rounded", "--wrt", "conv2.w").err
    assert message.startswith(
        f"{net}:33:3: error: torch.aten.log1p has no gradient, and is on the way from conv2.w"
    )
    notes = [line for line in message.splitlines() if ": note: " in line]
    assert [note.split(":")[1] for note in notes] == ["10", "11", "12", "13", "28"]
    assert notes[0].endswith("the way there") and notes[-1].endswith("and on to the loss")


def test_less_memory(cli, net):
    """A budget is met, `plan` says by what; one that cannot be met is told what holds the rest."""
    words = ("grad", net, "-g", "loss", "-s", "N=64")
    outcome = cli(*words, "--memory", "90KiB", "-o", "step.opg")
    assert (outcome.code, outcome.out) == (0, "")
    shown = cli("plan", "step.opg", "-g", "loss_grad", "-s", "N=64", "--summary").out
    assert "computed again: c1, r1 (2 ops); if all were kept, temporaries would be " in shown
    plain = cli("plan", net, "-g", "loss", "-s", "N=64", "--summary").out
    assert "computed again" not in plain
    outcome = cli(*words, "--memory", "30K")
    assert outcome.code == 2
    assert "loss_grad takes at least" in outcome.err
    assert "where N = 64, not 30.0 KiB\nhint: " in outcome.err
    assert f"{net}:1" in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "1M"], "needs a size for N\nhint: add --symbol N=8"),
        (["--memory", "1M", "-s", "M=3"], "graph loss_grad has no dimension M"),
        (["--memory", "lots", "-s", "N=3"], "'lots' is not a size: write 500M or 2G."),
        (["-s", "N=3"], "--symbol is for --memory"),
    ],
)
def test_memory_that_cannot_be_asked_for(cli, net, words, message):
    outcome = cli("grad", net, "-g", "loss", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
