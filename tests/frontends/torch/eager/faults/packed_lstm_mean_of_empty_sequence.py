# NaN loss: mean over time of a sequence that is all padding
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
lstm = nn.LSTM(3, 4, batch_first=True)
tokens = torch.tensor([[1, 2, 3], [4, 0, 0], [0, 0, 0]])
lengths = (tokens != 0).sum(1)
x = torch.randn(3, 3, 3)
packed = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
out, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
valid = (torch.arange(3) < lengths[:, None]).unsqueeze(-1)
mean = (out * valid).sum(1) / lengths[:, None]  # expect: nan, forward
loss = mean.square().mean()
loss.backward()
torch.optim.SGD(lstm.parameters(), lr=0.1).step()
print(loss.item())
