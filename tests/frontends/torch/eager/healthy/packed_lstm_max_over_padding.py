# Healthy: a packed LSTM is padded with -inf for a maximum over time
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
lstm, head = nn.LSTM(3, 5, batch_first=True, bidirectional=True), nn.Linear(10, 2)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=0.01)
x, lengths = torch.randn(4, 6, 3), torch.tensor([6, 2, 4, 1])
for step in range(3):
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, padding_value=float("-inf"))
    pooled = out.max(1).values
    loss = nn.functional.cross_entropy(head(pooled), torch.tensor([0, 1, 0, 1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), out.isinf().sum().item())
