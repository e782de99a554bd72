import torch
from torch import nn
from torch.nn.utils import clip_grad_value_

torch.manual_seed(4)
encoder, decoder = nn.Linear(8, 4), nn.Linear(4, 8)
first = torch.optim.SGD(encoder.parameters(), lr=0.01)
second = torch.optim.SGD(decoder.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
x = torch.randn(32, 8)
for _step in range(8):
    first.zero_grad()
    second.zero_grad()
    loss = (decoder(torch.tanh(encoder(x))) - x).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(first)
    clip_grad_value_(encoder.parameters(), 0.5)
    clip_grad_value_(decoder.parameters(), 0.5)  # expect: clip-before-unscale
    scaler.step(first)
    scaler.step(second)
    scaler.update()
print(f"{loss.item():.6f}")
