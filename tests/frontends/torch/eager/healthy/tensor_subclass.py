# Healthy: a tensor subclass with __torch_function__, and a wrapper with __torch_dispatch__
import torch
from torch.utils._pytree import tree_map


class Named(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        bare = lambda t: t.inner if isinstance(t, cls) else t
        out = op(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        return tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, out)


torch.manual_seed(0)
x = torch.randn(3).as_subclass(Named).requires_grad_()
y = torch.where(x > 0, x, torch.tensor(-torch.inf)).max() + x.exp().sum()
y.backward()
print(type(y).__name__, y.item(), x.grad.tolist())
w = Wrapped(torch.tensor([1.0, 0.0]))
z = (w / (w + 1)).softmax(0) * 2
print(type(z).__name__, z.inner.tolist())
