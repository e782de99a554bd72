# the script only prints the tensor, and reads no number of it
import torch

hits = torch.tensor([3.0, 0.0, 5.0])
tries = torch.tensor([4.0, 0.0, 9.0])


def rates(hits, tries):
    return hits / tries  # expect: nan, forward


print(rates(hits, tries))
