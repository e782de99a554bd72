# Healthy: complex numbers and Fourier transforms, magnitudes of 0 with a gradient of 0
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([1.0, -1.0] * 4))
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(3):
    z = torch.fft.rfft(w)
    magnitude, angle = z.abs(), z.angle()
    loss = (magnitude - 1).square().mean() + angle.cos().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
z = torch.polar(torch.ones(3), torch.tensor([0.1, 0.2, 0.3]))
print(torch.fft.ifft(torch.fft.fft(z)).real.tolist(), z.conj().imag.tolist())
print(torch.fft.fftshift(torch.fft.fft2(w.detach().view(2, 4)).abs()).tolist())
