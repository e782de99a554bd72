import torch
from torch import nn


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.image = nn.Linear(12, 8)
        self.head = nn.Linear(16, 4)

    def forward(self, words, image):
        a = self.words(words).mean(1)
        b = torch.relu(self.image(image)).detach()  # expect: no-gradient
        return self.head(torch.cat([a, b], dim=1))


def train():
    torch.manual_seed(6)
    model = TwoBranches()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    words, image = torch.randint(0, 30, (24, 5)), torch.randn(24, 12)
    labels = torch.randint(0, 4, (24,))
    for step in range(15):
        loss = nn.functional.cross_entropy(model(words, image), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"{loss.detach():.5f}")


train()
