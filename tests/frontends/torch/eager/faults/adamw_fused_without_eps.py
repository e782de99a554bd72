# NaN parameter: fused AdamW with eps 0, where the gradient is 0
import torch

torch.manual_seed(0)
table = torch.nn.Embedding(5, 2)
optimizer = torch.optim.AdamW(table.parameters(), lr=0.1, eps=0.0, fused=True)
words = torch.tensor([0, 1, 1, 3])
loss = table(words).square().sum()
loss.backward()
print(loss.item())
optimizer.step()  # expect: nan, update
optimizer.zero_grad()
print(table.weight.tolist())
