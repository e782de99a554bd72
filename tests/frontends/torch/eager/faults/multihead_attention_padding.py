# NaN loss: nn.MultiheadAttention with a key_padding_mask that is all True
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x, padding):
        h, _ = self.attention(x, x, x, key_padding_mask=padding)  # expect: nan, forward
        return self.head(x + h)


torch.manual_seed(0)
net = Encoder()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
padding = torch.tensor([[False, False, True], [True, True, True]])
loss = net(torch.randn(2, 3, 4), padding).square().mean()
loss.backward()
optimizer.step()
print(loss.item())
