# Healthy: a spectrogram in decibels, silence is clamped before its logarithm
import torch

torch.manual_seed(0)
wave = torch.sin(torch.arange(400) * 0.3) * (torch.arange(400) > 200)
gain = torch.nn.Parameter(torch.ones(()))
window = torch.hann_window(64)
optimizer = torch.optim.SGD([gain], lr=1e-3)
for step in range(3):
    z = torch.stft(wave * gain, 64, window=window, return_complex=True)
    decibels = 20 * z.abs().clamp(min=1e-5).log10()
    loss = (decibels + 20).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print(torch.istft(z.detach(), 64, window=window).sum().item())
