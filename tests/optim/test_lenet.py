"""LeNet learns the digits as it does in PyTorch: the same weights and batches, the same losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from training_peers import LENET_LOSS

import opstep
from opstep import optim

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(opstep.__file__).parent / "data"


def digits(steps: int, batch: int = 64) -> list[dict[str, np.ndarray]]:
    with np.load(DATA / "digits.npz") as data:
        images, labels = data["train_images"], data["train_labels"]
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(images)) for _ in range(steps * batch // 1000 + 1)])
    return [
        {"images": images[chosen], "labels": labels[chosen]}
        for chosen in order[: steps * batch].reshape(steps, batch)
    ]


def lenet() -> opstep.Program:
    """With weights as He et al. 2015 (arXiv:1502.01852) begin with them."""
    text = (DATA / "lenet.opg").read_text(encoding="utf-8") + LENET_LOSS
    program, rng = opstep.loads(text, "lenet.opg"), np.random.default_rng(0)
    for name, value in program.params.items():
        if name.endswith(".w"):
            std = (2 / np.prod(value.shape[1:])) ** 0.5
            program.params[name] = rng.normal(0, std, value.shape).astype(np.float32)
    return program


def their_loss(w: dict[str, torch.Tensor], batch) -> torch.Tensor:
    x = torch.tensor(batch["images"]).float()[:, None] * 0.0625
    for layer in ("conv1", "conv2"):
        c = functional.conv2d(x, w[f"{layer}.w"], w[f"{layer}.b"], padding=1)
        x = functional.max_pool2d(functional.relu(c), 2)
    x = x.flatten(1)
    for layer in ("fc1", "fc2", "fc3"):
        x = functional.linear(x, w[f"{layer}.w"], w[f"{layer}.b"])
        x = x if layer == "fc3" else functional.relu(x)
    return functional.cross_entropy(x, torch.tensor(batch["labels"]).long())


CURVES = {
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "AdamW": {"lr": 4e-3, "weight_decay": 1e-2},
}


@pytest.fixture
def one_thread():
    """Small ops wait for each other longer than they compute, where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", CURVES)
def test_the_loss_curve_is_pytorchs(kind):
    program = lenet().with_optimizer("loss", getattr(optim, kind)(**CURVES[kind]))
    tensors = {n: torch.tensor(program.params[n], requires_grad=True) for n in lenet().params}
    optimizer = getattr(torch.optim, kind)(tensors.values(), **CURVES[kind])
    ours, theirs = [], []
    for batch in digits(30):
        ours.append(float(program.run("loss_step", batch, threads=1)["l"]))
        optimizer.zero_grad()
        loss = their_loss(tensors, batch)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert ours[-1] < 0.6 * ours[0]


def test_it_learns():
    """Fifteen epochs with everything at once; the averages of params read as well as they."""
    steps = 300
    schedule = optim.Cosine(4e-3, steps, warmup=20)
    decay = {"*.b": 0.0, "*": 1e-2}
    program = lenet().with_optimizer(
        "loss", optim.AdamW(schedule, weight_decay=decay), clip_norm=5.0, ema=0.9
    )
    for batch in digits(steps):
        program.run("loss_step", batch)
    with np.load(DATA / "digits.npz") as data:
        test = {"images": data["test_images"], "labels": data["test_labels"]}
    assert program.run("accuracy", test)["share"] > 0.95
    averaged = lenet()
    averaged.params.update({n: program.params[f"{n}.ema"] for n in averaged.params})
    assert averaged.run("accuracy", test)["share"] > 0.95


def test_the_example_learns():
    """More than 98.5 % of the test images after the 200 epochs that docs/training.md trains."""
    program = opstep.load(ROOT / "examples" / "lenet_train.opg")
    trainer = opstep.train(
        program, DATA / "digits.npz", epochs=20, batch=64, lr=4e-3, schedule="cosine", warmup=20,
        weight_decay={"*.w": 0.3}, validate="test", metrics=["accuracy"],
    )  # fmt: skip
    assert trainer.validated["accuracy"] > 0.95
