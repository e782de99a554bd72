# NaN loss: attention where one sequence is masked as a whole
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / k.shape[-1] ** 0.5).masked_fill(~mask[:, None, :], float("-inf"))
        weights = torch.softmax(  # expect: nan, forward
            scores,
            dim=-1,
        )
        return weights @ v


torch.manual_seed(0)
net, mask = Attention(4), torch.tensor([[True, True, False], [False, False, False]])
print(net(torch.randn(2, 3, 4), mask).square().mean().item())
