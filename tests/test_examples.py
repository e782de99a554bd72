"""Every example against PyTorch with the same weights, and async against debug, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.runtime import arrays

torch = pytest.importorskip("torch")
F = torch.nn.functional

ROOT = Path(__file__).resolve().parent.parent
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
    sys.path.insert(0, str(EXAMPLES))
    try:
        from train_lenet import forward
    finally:
        sys.path.remove(str(EXAMPLES))
    program = opstep.load(EXAMPLES / "lenet.opg")
    for name, array in arrays.read_safetensors(DATA / "lenet.safetensors").items():
        program.params[name] = array
    x = draw(batch, 1, 8, 8) * 4
    (logits,) = both_modes(program, "lenet", {"x": x * np.float32(0.0625)})
    p = weights(program)
    layers = {n: layer(p[f"{n}.w"], p[f"{n}.b"]) for n in ("conv1", "conv2", "fc1", "fc2", "fc3")}
    close(logits, forward(layers, torch.from_numpy(x)))


def layer(w, b):
    """What applies this weight and bias."""
    if w.ndim == 4:
        return lambda x: F.conv2d(x, w, b, padding=1)
    return lambda x: F.linear(x, w, b)


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


def alexnet(x, p):
    """The well-known listing, for one-channel images."""
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv1.w"], p["conv1.b"], stride=4)), 3, 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv2.w"], p["conv2.b"], padding=2)), 3, 2)
    for name in ("conv3", "conv4", "conv5"):
        x = F.relu(F.conv2d(x, p[f"{name}.w"], p[f"{name}.b"], padding=1))
    x = F.max_pool2d(x, 3, 2).flatten(1)
    x = F.relu(F.linear(x, p["fc1.w"], p["fc1.b"]))
    x = F.relu(F.linear(x, p["fc2.w"], p["fc2.b"]))
    return F.linear(x, p["fc3.w"], p["fc3.b"])


def test_alexnet():
    program = opstep.load(EXAMPLES / "alexnet.opg")
    x = draw(2, 1, 224, 224)
    (logits,) = both_modes(program, "main", {"x": x})
    with torch.no_grad():
        close(logits, alexnet(torch.from_numpy(x), weights(program)))


def test_alexnet_trains_with_dropout():
    program = opstep.load(EXAMPLES / "alexnet.opg")
    inputs = {"x": draw(1, 1, 224, 224), "label": np.array([3], np.int32)}
    (loss,) = both_modes(program, "train", inputs)
    assert np.isfinite(loss)


def unet_block(x, p, name: str):
    c = F.conv2d(x, p[f"{name}.w"], padding=1)
    statistics = p[f"{name}.mean"], p[f"{name}.var"], p[f"{name}.scale"], p[f"{name}.bias"]
    return F.relu(F.batch_norm(c, *statistics, eps=1e-5))


def unet(x, p):
    skip1 = unet_block(x, p, "down1")
    skip2 = unet_block(F.max_pool2d(skip1, 2), p, "down2")
    deep = unet_block(F.max_pool2d(skip2, 2), p, "middle")
    up2 = unet_block(torch.cat([skip2, F.interpolate(deep, scale_factor=2)], 1), p, "up2")
    up1 = unet_block(torch.cat([skip1, F.interpolate(up2, scale_factor=2)], 1), p, "up1")
    return F.conv2d(up1, p["head.w"], p["head.b"])


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
        close(scores, unet(torch.from_numpy(x), weights(program)))


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
