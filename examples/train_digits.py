"""Trains LeNet on the digits with opstep alone, in some seconds (docs/training.md).

    python examples/train_digits.py --save digits.opg

The digits are those of scikit-learn (CC BY 4.0, from the UCI repository), split as
examples/train_lenet.py does it, which trains the same network with PyTorch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import opstep
from opstep import optim

DATA = Path(opstep.__file__).parent / "data"
BATCHES = 20  # of an epoch

# Cross entropy with labels that are 5 % the mean of all classes.
LOSS = """
graph loss(images: u8[N, 8, 8], labels: i32[N]) -> f32[] {
  pixels = cast(images, dtype=f32)
  scaled = mul(pixels, 0.0625)
  x = reshape(scaled, shape=[N, 1, 8, 8])
  logits = lenet(x)
  entropy = softmax_cross_entropy(logits, labels)
  logs = log_softmax(logits, axis=1)
  mean_log = mean(logs)
  sharp = mul(entropy, 0.95)
  smooth = mul(mean_log, -0.05)
  l = add(sharp, smooth)
  return l
}
"""


def lenet(rng: np.random.Generator) -> opstep.Program:
    """The network of the demo with a loss, and weights drawn as in He et al. 2015."""
    program = opstep.loads((DATA / "lenet.opg").read_text(encoding="utf-8") + LOSS, "lenet.opg")
    for name, value in program.params.items():
        if name.endswith(".w"):
            std = (2 / np.prod(value.shape[1:])) ** 0.5
            program.params[name] = rng.normal(0, std, value.shape).astype(np.float32)
    return program


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images, about half of them moved by up to one pixel up or down, left or right."""
    n = len(images)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    moved = rng.random(n) < 0.5
    dy, dx = (np.where(moved, rng.integers(0, 3, n), 1) for _ in range(2))
    rows = dy[:, None, None] + np.arange(8)[None, :, None]
    columns = dx[:, None, None] + np.arange(8)[None, None, :]
    return padded[np.arange(n)[:, None, None], rows, columns]


def train(epochs: int, seed: int = 0) -> opstep.Program:
    """The trained network; same seed: same weights, on every machine."""
    rng = np.random.default_rng(seed)
    steps = epochs * BATCHES
    schedule = optim.Cosine(4e-3, steps, warmup=steps // 10)
    adamw = optim.AdamW(schedule, weight_decay={"*.w": 1e-2})
    program = lenet(rng).with_optimizer("loss", adamw)
    with np.load(DATA / "digits.npz") as data:
        images, labels = data["train_images"], data["train_labels"]
    for epoch in range(epochs):
        total = 0.0
        for chosen in np.array_split(rng.permutation(len(images)), BATCHES):
            batch = {"images": shifted(images[chosen], rng), "labels": labels[chosen]}
            total += float(program.run("loss_step", batch)["l"])
        if epoch % 25 == 24:
            print(f"epoch {epoch + 1:3}  loss {total / BATCHES:.4f}")
    return program


def accuracy(program: opstep.Program, part: str) -> float:
    """Share of the digits of `part` (train or test) that the network reads right."""
    with np.load(DATA / "digits.npz") as data:
        inputs = {"images": data[f"{part}_images"], "labels": data[f"{part}_labels"]}
    return float(program.run("accuracy", inputs)["share"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--save", metavar="FILE.opg", help="write the program and its values")
    arguments = parser.parse_args()
    program = train(arguments.epochs)
    for part in ("train", "test"):
        print(f"{part} accuracy {accuracy(program, part):.2%}")
    if arguments.save:
        program.save(arguments.save)


if __name__ == "__main__":
    main()
