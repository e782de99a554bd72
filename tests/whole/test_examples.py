"""Every example against PyTorch with the same weights, and async against debug, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import peers
import pytest
import torch
import torch.nn.functional as F

import opstep
from opstep.runtime import arrays

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT / "opstep" / "data"
RELATIVE = 1e-5  # of the largest magnitude in the tensor


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def weights(program) -> dict:
    return {name: torch.from_numpy(array.copy()) for name, array in program.params.items()}


def close(ours: np.ndarray, theirs) -> None:
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape
    scale = np.abs(theirs).max() if theirs.size else 1.0
    assert np.abs(ours - theirs).max(initial=0) <= RELATIVE * scale


def both_modes(program, graph: str, inputs: dict) -> list[np.ndarray]:
    """The results in async mode, after a look that debug mode gives the same bits."""
    fast = program.run(graph, inputs, mode="async")
    stopped = program.run(graph, inputs, mode="debug")
    assert stopped.unwritten == []
    for name in fast.names:
        assert fast[name].tobytes() == stopped[name].tobytes(), name
    return fast.outputs


def every_example() -> list[Path]:
    return sorted(EXAMPLES.glob("*.opg"))


@pytest.mark.parametrize("path", every_example(), ids=lambda p: p.name)
def test_is_in_the_standard_layout(path):
    from opstep.runtime.ir.parser import parse
    from opstep.runtime.ir.printer import print_module

    text = path.read_text()
    assert print_module(parse(text, path.name)) == text


@pytest.mark.parametrize("batch", [1, 7])
def test_lenet(batch):
    program = opstep.load(EXAMPLES / "lenet.opg")
    for name, array in arrays.read_safetensors(DATA / "lenet.safetensors").items():
        program.params[name] = array
    x = draw(batch, 1, 8, 8) * 4
    (logits,) = both_modes(program, "lenet", {"x": x * np.float32(0.0625)})
    with torch.no_grad():
        close(logits, peers.lenet(torch.from_numpy(x) * 0.0625, weights(program)))


def test_lenet_reads_digits():
    program = opstep.load(EXAMPLES / "lenet.opg")
    for name, array in arrays.read_safetensors(DATA / "lenet.safetensors").items():
        program.params[name] = array
    digits = arrays.read_npz(DATA / "digits.npz")
    inputs = {"images": digits["test_images"], "labels": digits["test_labels"]}
    (share,) = both_modes(program, "accuracy", inputs)
    assert share >= 0.98
    guesses = program.run("main", {"images": digits["test_images"]})["digits"]
    assert (guesses == digits["test_labels"]).mean() == pytest.approx(float(share))


def test_alexnet():
    program = opstep.load(EXAMPLES / "alexnet.opg")
    x = draw(2, 1, 224, 224)
    (logits,) = both_modes(program, "main", {"x": x})
    with torch.no_grad():
        close(logits, peers.alexnet(torch.from_numpy(x), weights(program)))


def test_alexnet_drops_out_anew_in_each_step():
    program = opstep.load(EXAMPLES / "alexnet.opg")
    inputs = {"x": draw(1, 1, 224, 224), "label": np.array([3], np.int32)}
    (first,) = both_modes(program, "loss", inputs)
    assert np.isfinite(first)
    program.params["step"] = 1
    assert program.run("loss", inputs)["l"] != first


@pytest.mark.parametrize("batch", [1, 3])
def test_unet(batch):
    program = opstep.load(EXAMPLES / "unet.opg")
    for k, (name, array) in enumerate(list(program.params.items())):
        if name.endswith((".mean", ".bias", ".scale")):
            program.params[name] = array + draw(*array.shape, seed=k) * np.float32(0.3)
        elif name.endswith(".var"):
            program.params[name] = np.abs(draw(*array.shape, seed=k)) + np.float32(0.5)
    x = draw(batch, 1, 64, 64)
    (scores,) = both_modes(program, "main", {"x": x})
    with torch.no_grad():
        close(scores, peers.unet(torch.from_numpy(x), weights(program)))


@pytest.mark.parametrize("batch", [1, 3])
def test_unet_of_two_pictures(batch):
    program = opstep.load(EXAMPLES / "unet_two.opg")
    for k, (name, array) in enumerate(list(program.params.items())):
        if array.ndim == 1:
            program.params[name] = draw(*array.shape, seed=k) * np.float32(0.3)
    inputs = {name: draw(batch, 1, 64, 64, seed=k) for k, name in enumerate("ab")}
    policy = opstep.policy(streams=2)
    assert program.plan(symbols={"N": batch}, policy=policy).streams == 2
    mask, edge = both_modes(program, "main", inputs)
    with torch.no_grad():
        theirs = peers.unet_two(*map(torch.from_numpy, inputs.values()), weights(program))
    close(mask, theirs[0])
    close(edge, theirs[1])


def encode(x, w, b):
    return F.layer_norm(F.gelu(F.linear(x, w, b)), (64,))


def test_branches():
    program = opstep.load(EXAMPLES / "branches.opg")
    left, right = draw(5, 32), draw(5, 48, seed=1)
    inputs = {"left": left, "right": right, "bias": np.float32(0.5)}
    moved, energy, distance = both_modes(program, "main", inputs)
    p = weights(program)
    a = encode(torch.from_numpy(left), p["left.w"], p["left.b"])
    b = encode(torch.from_numpy(right), p["right.w"], p["right.b"])
    share = torch.sigmoid(F.linear(torch.cat([a, b], 1), p["gate.w"], p["gate.b"]))
    mixed = share * a + (1 - share) * b + 0.5
    close(moved, mixed)
    close(energy, (mixed * mixed).sum(1))
    close(distance, (a - b).abs())


def transformer(text, p):
    """The network of attention.opg, of PyTorch's own parts."""
    b, length = text.shape
    x = p["token"][text.long()] + p["place"][:length]
    n = F.layer_norm(x, (32,), p["first.norm1.scale"], p["first.norm1.bias"])
    rows = F.linear(n, p["first.w_in"].reshape(96, 32), p["first.b_in"].reshape(96))
    q, k, v = rows.reshape(b, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    joined = heads.transpose(1, 2).reshape(b, length, 32)
    x = x + F.linear(joined, p["first.w_out"].reshape(32, 32), p["first.b_out"])
    n = F.layer_norm(x, (32,), p["first.norm2.scale"], p["first.norm2.bias"])
    h = F.gelu(F.linear(n, p["first.w1"], p["first.b1"]))
    x = x + F.linear(h, p["first.w2"], p["first.b2"])
    return F.linear(F.layer_norm(x, (32,), p["last.scale"], p["last.bias"]), p["token"])


@pytest.mark.parametrize("length", [1, 16, 64])
def test_attention(length):
    program = opstep.load(EXAMPLES / "attention.opg")
    text = np.random.default_rng(0).integers(0, 256, (2, length)).astype(np.int32)
    (scores,) = both_modes(program, "main", {"text": text})
    with torch.no_grad():
        close(scores, transformer(torch.from_numpy(text), weights(program)))


def test_attention_loss():
    program = opstep.load(EXAMPLES / "attention.opg")
    text = np.frombuffer(b"to be or not to be, that is", np.uint8)[None].astype(np.int32)
    (cost,) = both_modes(program, "loss", {"text": text})
    with torch.no_grad():
        scores = transformer(torch.from_numpy(text), weights(program))[:, :-1]
        theirs = F.cross_entropy(scores.transpose(1, 2), torch.from_numpy(text[:, 1:]).long())
        close(cost, theirs)


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_branches_on_any_number_of_streams(streams):
    program = opstep.load(EXAMPLES / "branches.opg")
    inputs = {"left": draw(5, 32), "right": draw(5, 48), "bias": np.float32(0.5)}
    one = program.run("main", inputs, mode="debug")
    some = program.run("main", inputs, streams=streams)
    assert [a.tobytes() for a in one.outputs] == [a.tobytes() for a in some.outputs]


def test_while():
    program = opstep.load(EXAMPLES / "while.opg")
    x = np.abs(draw(9)) * 100 + np.float32(0.1)
    root, steps = both_modes(program, "main", {"x": x})
    close(root, torch.from_numpy(x).sqrt())
    assert 3 < steps < 40
    assert program.params["runs"] == 2


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign):
    program = opstep.load(EXAMPLES / "while.opg")
    x = np.full(3, sign * 2, np.float32)
    (y,) = both_modes(program, "upright", {"x": x})
    assert y.tolist() == [2, 2, 2]


@pytest.mark.parametrize("moments", [1, 12, 450])
def test_recurrent_and_its_gradient(moments):
    """450 moments are more than are gone back through one within another."""
    program = opstep.load(EXAMPLES / "recurrent.opg")
    names = [*program.params, "x"]
    program = program.with_grad("loss", names)
    x, label = draw(moments, 5, 8), np.array([0, 3, 1, 2, 3], np.int32)
    (scores,) = both_modes(program, "main", {"x": x})
    loss, *gradients = program.run("loss_grad", {"x": x, "label": label}).outputs
    leaves = {n: t.requires_grad_() for n, t in weights(program).items()}
    given = torch.from_numpy(x).requires_grad_()
    expected = peers.recurrent(given, leaves)
    close(scores, expected)
    total = F.cross_entropy(expected, torch.from_numpy(label).long())
    total.backward()
    close(loss, total)
    for name, gradient in zip(names, gradients, strict=True):
        close(gradient, (given if name == "x" else leaves[name]).grad)
