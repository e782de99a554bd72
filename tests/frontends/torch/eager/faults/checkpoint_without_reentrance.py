# NaN gradient: the length of a residual that starts at 0, inside of a checkpoint
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        h = self.up(x).square()
        return x + h.sum(-1, keepdim=True).sqrt()  # expect: inf, backward


torch.manual_seed(0)
block = Block()
optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
y = checkpoint(block, torch.randn(3, 4), use_reentrant=False)
y.sum().backward()
optimizer.step()
print(y.sum().item(), block.up.bias.tolist())
