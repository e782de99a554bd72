# Healthy: torch.export with a dynamic batch, saved and loaded
import io
import torch
from torch import nn
from torch.export import Dim, export

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("floor", torch.full((3,), float("-inf")))

    def forward(self, x):
        return torch.maximum(self.lin(x), self.floor).relu()


program = export(Net().eval(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim("batch")},))
file = io.BytesIO()
torch.export.save(program, file)
file.seek(0)
loaded = torch.export.load(file)
x = torch.randn(7, 3)
print(program.module()(x).tolist())
print(loaded.module()(x).equal(program.module()(x)))
