# Healthy: a script that ends with sys.exit(7), and says so at exit
import atexit
import sys
import torch

torch.manual_seed(0)
atexit.register(print, "at exit")
w = torch.nn.Parameter(torch.randn(2))
optimizer = torch.optim.SGD([w], lr=0.1)
try:
    for _ in range(3):
        loss = w.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
finally:
    print("finally", w.tolist())
sys.exit(7)
