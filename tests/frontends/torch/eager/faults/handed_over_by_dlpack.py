# NaN in a result that NumPy gets by DLPack
import numpy as np
import torch

out = torch.zeros(2) / torch.zeros(2)  # expect: nan, forward
print(np.from_dlpack(out))
