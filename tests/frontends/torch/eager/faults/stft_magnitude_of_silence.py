# NaN gradient: magnitude of a spectrogram by hand, where the signal is silent
import torch

torch.manual_seed(0)
gain = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([gain], lr=0.1)
wave = torch.randn(256)
wave[:128] = 0
window = torch.hann_window(32)


def spectrogram(signal):
    z = torch.stft(signal, 32, window=window, center=False, return_complex=True)
    power = z.real**2 + z.imag**2
    return torch.sqrt(power)  # expect: inf, backward


loss = (spectrogram(wave * gain) - 1).abs().mean()
loss.backward()
optimizer.step()
print(loss.item(), gain.item())
