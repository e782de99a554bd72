# AssertionError: a check of the script's own
import torch


def normalised(x):
    return (x - x.mean()) / x.std()  # expect: nan, forward


def check(t):
    assert not torch.isnan(t).any(), "NaN in the features"
    return t


features = check(normalised(torch.full((8,), 3.0)))
print(features)
