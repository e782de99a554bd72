# Infinite loss: the mask hides the labelled class
import torch
import torch.nn.functional as F

logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
hidden = torch.tensor([[False, False, True]])
masked = logits.masked_fill(hidden, float("-inf"))  # expect: inf, forward
loss = F.cross_entropy(masked, torch.tensor([2]))
loss.backward()
print("loss", loss.item())
