# NaN results that are printed, of a NaN that the script writes
import torch

x = torch.tensor([1.0, 2.0, 3.0])
x[1] = float("nan")  # expect: nan, forward
y = torch.nn.functional.layer_norm(x, (3,))
print(y)
