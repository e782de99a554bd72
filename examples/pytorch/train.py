"""Trains the network of model.py. After some steps the loss is NaN: README.md finds out why.

python train.py --steps 50
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from model import Encoder, TripletLoss

DIGITS = Path(__file__).resolve().parents[2] / "opstep" / "data" / "digits.npz"


def triplets(labels, count, generator):
    """Numbers of images: anchors, one of the same digit for each, and one of another."""
    anchor = torch.randint(len(labels), (count,), generator=generator)
    alike = labels[anchor][:, None] == labels[None]
    same = torch.multinomial(alike.float(), 1, generator=generator)[:, 0]
    other = torch.multinomial((~alike).float(), 1, generator=generator)[:, 0]
    return anchor, same, other


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    with np.load(DIGITS) as digits:
        images = torch.tensor(digits["train_images"])[:, None] / 16
        labels = torch.tensor(digits["train_labels"])

    model, criterion = Encoder(), TripletLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        batch = [images[k] for k in triplets(labels, 16, generator)]
        loss = criterion(*(model(part) for part in batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step:3}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
