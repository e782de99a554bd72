# Healthy: dynamic quantisation of linear layers, quantised tensors
import warnings
import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
small = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
x = torch.randn(3, 6)
with torch.no_grad():
    print(small(x).tolist())
    print((small(x) - net(x)).abs().max().item() < 0.1)
q = torch.quantize_per_tensor(torch.tensor([-1.0, 0.0, 1e9]), 0.1, 10, torch.quint8)
print(q.int_repr().tolist(), q.dequantize().tolist())
observer = torch.ao.quantization.MinMaxObserver()
observer(x)
print(observer.calculate_qparams()[0].item())
