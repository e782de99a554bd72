# Infinite loss, of an infinity in the data
import numpy as np
import torch

x = np.array([0.0, 1.0], dtype=np.float32)
with np.errstate(all="ignore"):
    y = np.log(x)
t = torch.tensor(y)  # expect: inf, forward
w = torch.ones(2, requires_grad=True)
loss = (w * t).sum()
loss.backward()
print(w.grad, loss)
