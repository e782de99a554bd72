# NaN gradient: eigenvectors of a covariance with equal eigenvalues
import torch


class Whitening(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cov = torch.nn.Parameter(2 * torch.eye(3))

    def forward(self, x):
        values, vectors = torch.linalg.eigh(self.cov)  # expect: nan, backward
        scaled = vectors * values.rsqrt()
        return x @ scaled


torch.manual_seed(0)
net = Whitening()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
out = net(torch.randn(5, 3))
out[:, 0].square().sum().backward()
optimizer.step()
print(net.cov.tolist())
