import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(F.silu(self.body(x))).squeeze(-1)


def main():
    torch.manual_seed(1)
    x = torch.randn(96, 4)
    y = x.sum(1).unsqueeze(1)
    model = Regression()
    criterion = nn.SmoothL1Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _epoch in range(4):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(model(a), b)  # expect: broadcast
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.6f}")


main()
