# Healthy: COO and CSR matrices
import warnings
import torch

warnings.filterwarnings("ignore", "Sparse CSR")
torch.manual_seed(0)
dense = torch.randn(4, 4)
dense[dense < 0.3] = 0
coo = dense.to_sparse()
csr = dense.to_sparse_csr()
x = torch.randn(4, 2, requires_grad=True)
y = torch.sparse.mm(coo, x)
y.square().sum().backward()
print(y.tolist(), x.grad.tolist())
print((csr @ x.detach()).tolist(), csr.values().tolist())
print(torch.sparse.softmax(coo, 1).to_dense().tolist())
print(torch.sparse.sum(coo, 0).to_dense().tolist())
