"""Trains the weights of the demo's LeNet with PyTorch, and makes the data file they are trained on.

    python examples/train_lenet.py --make-data   # needs scikit-learn: writes opstep/data/digits.npz
    python examples/train_lenet.py               # needs torch: writes opstep/data/lenet.safetensors

The split is fixed: `SPLIT_SEED` permutes the 1,797 digits, the last 500 of them are the test set,
which training never sees; the settings below were chosen by cross-validation within the rest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent.parent / "opstep" / "data"
SPLIT_SEED = 0
TEST_DIGITS = 500
EPOCHS = 150
BATCH = 64


def make_data(path: Path) -> None:
    """Writes the digits as u8 images (values 0 to 16) and i32 labels, split into train and test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.int32)
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    train, test = order[:-TEST_DIGITS], order[-TEST_DIGITS:]
    np.savez_compressed(
        path,
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
    )
    print(f"{path.name}: {len(train)} to train on, {len(test)} to test on")


def build():
    """The network of lenet.opg, by the names of its params."""
    from torch import nn

    layers = {
        "conv1": nn.Conv2d(1, 6, 3, padding=1),
        "conv2": nn.Conv2d(6, 16, 3, padding=1),
        "fc1": nn.Linear(64, 120),
        "fc2": nn.Linear(120, 84),
        "fc3": nn.Linear(84, 10),
    }
    for layer in layers.values():
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return nn.ModuleDict(layers)


def forward(net, images):
    """Logits f32[N, 10] of images f32[N, 1, 8, 8] with values 0 to 16."""
    from torch.nn import functional as F

    x = images * 0.0625
    x = F.max_pool2d(F.relu(net["conv1"](x)), 2)
    x = F.max_pool2d(F.relu(net["conv2"](x)), 2)
    x = x.flatten(1)
    x = F.relu(net["fc1"](x))
    x = F.relu(net["fc2"](x))
    return net["fc3"](x)


def shifted(images, generator):
    """The images, about half of them moved by up to one pixel up or down, left or right."""
    import torch
    from torch.nn import functional as F

    n = len(images)
    padded = F.pad(images, (1, 1, 1, 1))
    moved = torch.rand(n, generator=generator) < 0.5
    dy, dx = (torch.randint(0, 3, (n,), generator=generator).where(moved, 1) for _ in range(2))
    rows = dy[:, None, None] + torch.arange(8)[None, :, None]
    columns = dx[:, None, None] + torch.arange(8)[None, None, :]
    return padded[torch.arange(n)[:, None, None], 0, rows, columns][:, None]


def train(seed: int = 0):
    """The trained network; same seed, same machine: same weights."""
    import torch
    from torch.nn import functional as F

    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    with np.load(DATA / "digits.npz") as data:
        images = torch.from_numpy(data["train_images"]).float()[:, None]
        labels = torch.from_numpy(data["train_labels"]).long()
    net = build()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-2)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(images), generator=generator).split(BATCH):
            loss = F.cross_entropy(
                forward(net, shifted(images[batch], generator)), labels[batch], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        if epoch % 25 == 24:
            print(f"epoch {epoch + 1:3}  loss {total / len(images):.4f}")
    return net


def accuracy(net, part: str) -> float:
    """Share of the digits of `part` (train or test) that the network reads right."""
    import torch

    with np.load(DATA / "digits.npz") as data, torch.no_grad():
        images = torch.from_numpy(data[f"{part}_images"]).float()[:, None]
        guesses = forward(net, images).argmax(1).numpy()
        return float((guesses == data[f"{part}_labels"]).mean())


def save(net, path: Path) -> None:
    """Writes the weights under the names that lenet.opg gives them: conv1.w, conv1.b, ..."""
    from safetensors.numpy import save_file

    short = {"weight": "w", "bias": "b"}
    tensors = {}
    for name, tensor in net.state_dict().items():
        layer, _, kind = name.partition(".")
        tensors[f"{layer}.{short[kind]}"] = tensor.numpy()
    save_file(tensors, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make-data", action="store_true", help="write digits.npz and stop")
    if parser.parse_args().make_data:
        make_data(DATA / "digits.npz")
        return
    net = train()
    for part in ("train", "test"):
        print(f"{part} accuracy {accuracy(net, part):.2%}")
    save(net, DATA / "lenet.safetensors")


if __name__ == "__main__":
    main()
