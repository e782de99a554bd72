# NaN loss: CLIP's logit scale is an exponential that overflows
import torch
import torch.nn.functional as F
from torch import nn


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(95.0))
        self.image, self.text = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, image, text):
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        scale = self.log_scale.exp()  # expect: inf, forward
        return scale * a @ b.T


torch.manual_seed(0)
net = Clip()
optimizer = torch.optim.AdamW(net.parameters())
loss = F.cross_entropy(net(torch.randn(4, 3), torch.randn(4, 3)), torch.arange(4))
loss.backward()
optimizer.step()
print(loss.item())
