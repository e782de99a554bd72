# NaN gradient: a product taken as exp of a sum of logarithms, with a factor 0
import torch

torch.manual_seed(0)
gate = torch.nn.Parameter(torch.tensor([[0.5, 0.0, 0.25], [0.5, 0.5, 0.5]]))
optimizer = torch.optim.SGD([gate], lr=0.1)
for epoch in range(2):
    logs = torch.log(gate)  # expect: nan, backward
    joint = logs.sum(-1).exp()
    loss = (1 - joint).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())
