"""The networks of `examples/` learn, and do as PyTorch does."""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pytest
import torch
import training_peers
from training_peers import DATA, NETWORKS, ROOT, on_torch, trained

import opstep
from opstep.runtime.plan.plan import Run

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def one_thread():
    """Small ops wait for each other longer than they compute, where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_pytorchs(name):
    """AlexNet's too, with the elements that its dropouts drop."""
    differences = training_peers.gradients(NETWORKS[name], 2)
    assert max(differences.values()) < 1e-5, differences


CURVES = {
    "U-Net": ("Adam", {"lr": 1e-3}),
    "U-Net of two pictures": ("Adam", {"lr": 1e-3}),
    "recurrent net": ("RMSprop", {"lr": 1e-3}),
    "GPT": ("AdamW", {"lr": 1e-4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CURVES)
def test_loss_curves_are_pytorchs(name):
    """On the same batch again and again, which a network learns by heart."""
    network, (kind, settings) = NETWORKS[name], CURVES[name]
    program = network.program()
    tensors = network.tensors(program)
    leaves = [tensors[n] for n in trained(program)]
    optimizer = getattr(torch.optim, kind)(leaves, **settings)
    program = program.with_optimizer("loss", kind.lower(), **settings)
    batch = network.batch(2, np.random.default_rng(0))
    ours, theirs = [], []
    for _ in range(5):
        ours.append(float(program.run("loss_step", batch, threads=1).outputs[0]))
        optimizer.zero_grad()
        loss = network.peer(tensors, on_torch(batch))
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert ours[-1] < ours[0]
    for name in set(program.params) & set(tensors) - set(trained(program)):  # moving averages
        np.testing.assert_allclose(program.params[name], tensors[name], rtol=1e-4, atol=1e-6)


def test_the_unet_finds_ink_it_has_not_seen():
    program = opstep.load(EXAMPLES / "unet.opg").with_optimizer("loss", "adam", lr=1e-2)
    rng = np.random.default_rng(0)
    for _ in range(40):
        program.run("loss_step", DATA["unet"](8, rng))
    test = DATA["unet"](20, rng, "test")
    (share,) = program.run("iou", test).outputs
    guess = program.run("main", {"x": test["x"]})["scores"].argmax(1) == 1
    ink = test["mask"] == 1
    assert share == pytest.approx((guess & ink).sum() / (guess | ink).sum())
    assert share > 0.7


def hunted(file: str) -> opstep.Hunt:
    """Ten steps on one batch, at a learning rate of 1."""
    program = opstep.load(EXAMPLES / file).with_optimizer("loss", "sgd", lr=1.0)
    batch = DATA["unet"](8, np.random.default_rng(0))
    return opstep.hunt(program, "loss_step", batch, steps=10)


@pytest.mark.slow
def test_without_batch_norm_the_unet_goes_nan():
    """In its weights numbers grow until a convolution's sum is too large."""
    assert not hunted("unet.opg").findings
    found = hunted("unet_plain.opg").first
    assert found is not None
    assert found.op == "conv2d"
    assert found.verdict.rules[0][0] == "overflow of f32"


def test_both_losses_of_two_pictures_fall():
    program = opstep.load(EXAMPLES / "unet_two.opg").with_optimizer("loss", "adam", lr=3e-3)
    batch = DATA["unet_two"](4, np.random.default_rng(0))
    results = [program.run("loss_step", batch) for _ in range(15)]
    assert list(results[0].names) == ["l", "mask_loss", "edge_loss"]
    for result in results:
        assert result["l"] == pytest.approx(result["mask_loss"] + result["edge_loss"] / 2)
    for name in results[0].names:
        assert results[-1][name] < results[0][name]


def test_the_recurrent_net_reads_digits():
    program = opstep.load(EXAMPLES / "recurrent_digits.opg").with_optimizer("loss", lr=3e-3)
    with np.load(DATA["DIGITS"]) as data:
        digits = dict(data)
    rng = np.random.default_rng(0)
    for _ in range(150):
        chosen = rng.choice(len(digits["train_images"]), 64, replace=False)
        batch = {n: digits[f"train_{n}"][chosen] for n in ("images", "labels")}
        program.run("loss_step", batch)
    test = {n: digits[f"test_{n}"] for n in ("images", "labels")}
    assert program.run("accuracy", test)["share"] > 0.85


def bf16(text: str) -> str:
    """What the first lines of gpt.opg say: all but the loss."""
    before, loss, after = text.partition("\ngraph loss")
    return before.replace("f32", "bf16") + loss + after


def test_the_gpt_learns_in_bf16():
    text = (EXAMPLES / "gpt.opg").read_text(encoding="utf-8")
    batch = DATA["text"](1, np.random.default_rng(0))
    losses = []
    for edit in (str, bf16):
        program = opstep.loads(edit(text), "gpt.opg").with_optimizer("loss", "adamw", lr=1e-4)
        losses.append([float(program.run("loss_step", batch)["l"]) for _ in range(3)])
    assert program.params["h1.qkv.w.master"].dtype == np.float32
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
    assert losses[1][-1] < losses[1][0] - 0.2


def test_the_gradients_of_a_convolution_run_beside_each_other():
    program = opstep.load(EXAMPLES / "unet_plain.opg")
    program = program.with_grad("loss", trained(program))
    policy = opstep.policy(streams=2)
    plan = program.plan("loss_grad", symbols={"N": 16}, policy=policy)
    streams: dict[int, set[int]] = {}  # of the gradients by what a convolution gave
    for run in (found for found in plan.instructions if isinstance(found, Run)):
        step = plan.steps[run.step]
        if step.op.name in ("conv2d_input_grad", "conv2d_weight_grad"):
            streams.setdefault(step.operands[0], set()).add(run.stream)
    assert sorted(map(len, streams.values())) == [1, 2, 2, 2, 2, 2]  # the first has but one


def test_a_linear_layer_of_our_own_is_pytorchs():
    linear = runpy.run_path(str(EXAMPLES / "pytorch" / "linear.py"))
    ours, theirs = linear["Linear"](8, 4), torch.nn.Linear(8, 4)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 5, 8)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = ours(mine), theirs(other)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(mine.grad, other.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
    exact = [t.double().detach().requires_grad_() for t in (x, ours.weight, ours.bias)]
    assert torch.autograd.gradcheck(linear["LinearFunction"].apply, exact)


@pytest.mark.parametrize("kind", ["unet", "unet_two", "text"])
def test_data_is_the_same_each_time(kind, tmp_path, monkeypatch):
    for name in ("a", "b"):
        argv = ["training_data.py", kind, str(tmp_path / f"{name}.npz"), "--count", "10"]
        monkeypatch.setattr("sys.argv", argv)
        runpy.run_path(str(EXAMPLES / "training_data.py"), run_name="__main__")
    with np.load(tmp_path / "a.npz") as first, np.load(tmp_path / "b.npz") as second:
        assert {len(a) for n, a in first.items() if n.startswith("test_")} == {1}
        for name, array in first.items():
            assert array.tobytes() == second[name].tobytes()


def commands() -> list[str]:
    """Those of the guide's section on examples."""
    guide = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    section = guide.split("\n## Examples\n")[1].split("\n## ")[0]
    return [line[2:] for line in section.splitlines() if line.startswith("$ ")]


def smaller(command: str) -> str:
    """Of options that are given twice, the last counts."""
    if " train " in command:
        few = "--batch 1 --warmup 1" if "gpt" in command else "--batch 10"
        return f"{command} --epochs 1 {few}"
    if "training_data.py" in command:
        return f"{command} --count {3 if ' text ' in command else 20}"
    return command


@pytest.mark.slow
def test_the_guides_commands_work(tmp_path):
    for folder in ("opstep", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for name, module in (("python", ""), ("opstep", "-m opstep ")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    given = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    for command in commands():
        ran = subprocess.run(
            ["sh", "-c", smaller(command)],
            cwd=tmp_path, env=given, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
