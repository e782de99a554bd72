"""A network that places images of digits in a space, those of the same digit near each other."""

import torch
from torch import nn


def distance(a, b):
    squares = (a - b).pow(2).sum(dim=-1)
    return squares.sqrt()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
        )
        self.out = nn.Linear(16 * 2 * 2, 8)

    def forward(self, images):
        features = self.features(images)
        return self.out(features.flatten(start_dim=1))


class TripletLoss(nn.Module):
    """An anchor is to be nearer to an image of its digit than to one of another, by a margin."""

    def forward(self, anchor, same, other):
        near = distance(anchor, same)
        far = distance(anchor, other)
        return torch.relu(near - far + 1.0).mean()
