# NaN gradient: a decorated loss whose focal factor is 0 ** 0.5
import functools
import torch
import torch.nn.functional as F


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        result = function(*args, **kwargs)
        print(function.__name__, result.item())
        return result
    return wrapper


@logged
def focal(logits, target, gamma=0.5):
    ce = F.cross_entropy(logits, target, reduction="none")
    return ((1 - (-ce).exp()) ** gamma * ce).mean()  # expect: inf, backward


w = torch.nn.Parameter(torch.tensor([[60.0, 0.0], [0.0, 1.0]]))
focal(w, torch.tensor([0, 1])).backward()
torch.optim.SGD([w], lr=0.1).step()
print(w.tolist())
