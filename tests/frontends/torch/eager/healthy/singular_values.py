# Healthy: SVD, eigenvalues, Cholesky, QR and least squares of well-behaved matrices
import torch

torch.manual_seed(0)
a = torch.randn(4, 3, requires_grad=True)
u, s, vh = torch.linalg.svd(a, full_matrices=False)
low = (u[:, :2] * s[:2]) @ vh[:2]
loss = (low - a.detach()).square().sum() + torch.linalg.matrix_norm(a, "nuc")
loss.backward()
print(loss.item(), a.grad.sum().item())
gram = a.detach().T @ a.detach() + torch.eye(3)
print(torch.linalg.eigvalsh(gram).tolist())
print(torch.linalg.cholesky(gram).diagonal().tolist())
print(torch.linalg.qr(a.detach())[1].diagonal().abs().tolist())
solution = torch.linalg.lstsq(a.detach(), torch.ones(4, 1)).solution
print([round(v, 3) for v in solution.flatten().tolist()])
print(torch.linalg.cond(gram).item(), torch.linalg.matrix_rank(gram).item())
