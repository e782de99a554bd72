import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, vocabulary=12, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, tokens):
        return self.softmax(self.out(self.rnn(self.embed(tokens))[0]))  # expect: loss-stalls


torch.manual_seed(34)
lm = LM()
opt = torch.optim.Adam(lm.parameters(), lr=1e-3)
for _step in range(25):
    tokens = torch.randint(0, 12, (6, 8))
    p = lm(tokens[:, :-1])
    loss = nn.functional.cross_entropy(p.reshape(-1, 12), tokens[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.4f}")
