import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(35)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.place = nn.Embedding(20, 16), nn.Embedding(10, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.emb(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.layers(h, mask, is_causal=True))


net = Model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-8, 1.0, 10)
for _step in range(20):
    x = torch.randint(0, 20, (8, 10))
    loss = F.cross_entropy(net(x)[:, :-1].reshape(-1, 20), x[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    warm.step()
print(f"{loss:.6f}")
