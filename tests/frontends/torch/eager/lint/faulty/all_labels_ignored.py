import torch
from torch import nn

torch.manual_seed(22)
PAD = 0
model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
for _step in range(5):
    tokens = torch.randint(1, 20, (4, 7))
    labels = torch.full_like(tokens, PAD)
    loss = criterion(model(tokens).flatten(0, 1), labels.flatten())  # expect: labels
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.4f}")
