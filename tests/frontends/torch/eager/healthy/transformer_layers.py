# Healthy: nn.Transformer with its own masks, trained and evaluated (fast path)
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
mask = nn.Transformer.generate_square_subsequent_mask(4)
padding = torch.tensor([[False] * 4, [False, False, True, True]])
for _ in range(2):
    x = torch.randn(2, 4, 8)
    y = net(x, mask=mask, src_key_padding_mask=padding.float().masked_fill(padding, -torch.inf))
    loss = y[~padding].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
net.eval()
with torch.no_grad():
    print(net(x, src_key_padding_mask=padding).sum(-1).tolist())
