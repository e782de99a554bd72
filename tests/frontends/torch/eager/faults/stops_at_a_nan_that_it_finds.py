# NaN loss that the script finds itself, and stops
import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
for i in range(10):
    x = torch.randn(4, 3) * i
    loss = torch.log(net(x) - 1).mean()  # expect: nan, forward
    if torch.isnan(loss):
        print("NaN at", i)
        break
