# Healthy: the script itself uses detect_anomaly, and catches what that raises
import warnings
import torch

warnings.simplefilter("ignore")
torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([0.0, 4.0]))
optimizer = torch.optim.SGD([w], lr=0.1)
with torch.autograd.detect_anomaly():
    loss = (w + 1).sqrt().sum()
    loss.backward()
    optimizer.step()
    print(loss.item(), w.tolist())
    try:
        x = torch.zeros(2, requires_grad=True)
        (x.sqrt() * 0).sum().backward()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
print(torch.is_anomaly_enabled(), w.grad.tolist())
