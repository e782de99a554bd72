# NaN gradient: lengths of projected states, where the padding of a packed sequence is 0
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

torch.manual_seed(0)
gru, project = nn.GRU(2, 3), nn.Linear(3, 3, bias=False)


def sizes(sequences):
    packed = pack_sequence(sequences, enforce_sorted=False)
    states, lengths = pad_packed_sequence(gru(packed)[0])
    squares = project(states).square().sum(-1)
    return squares.sqrt(), lengths  # expect: nan, backward


optimizer = torch.optim.SGD([*gru.parameters(), *project.parameters()], lr=0.1)
size, lengths = sizes([torch.randn(4, 2), torch.randn(2, 2)])
mask = torch.arange(4)[:, None] < lengths
(size * mask).sum().backward()
optimizer.step()
print(size.tolist(), project.weight.tolist())
