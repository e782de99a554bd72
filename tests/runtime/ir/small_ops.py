"""A few ops for the tests of the language, apart from those that come with the project."""

from __future__ import annotations

from opstep.runtime.ir.op import OPS, Mismatch, Op
from opstep.runtime.ir.types import TensorType, boolean


def broadcast(op: str, *types):
    shape: tuple = ()
    for t in types:
        short, long = sorted((shape, t.shape), key=len)
        head, tail = long[: len(long) - len(short)], long[len(long) - len(short) :]
        merged = []
        for a, b in zip(short, tail, strict=True):
            if a != b and a != 1 and b != 1:
                raise Mismatch(f"{op} cannot broadcast {types[0]} with {types[-1]}", len(types) - 1)
            merged.append(b if a == 1 else a)
        shape = (*head, *merged)
    return shape


def declare() -> dict[str, type[Op]]:
    """The ops by name. They stay out of the global table, which may hold ops of the same names."""
    kept = dict(OPS)
    OPS.clear()

    class relu(Op):
        """The larger of x and 0."""

        signature = "relu(x: N)"

        def infer(x):
            return x

    class add(Op):
        """x + y."""

        signature = "add(x: N, y: N)"

        def infer(x, y):
            return TensorType(x.dtype, broadcast("add", x, y))

    class mul(Op):
        """x * y."""

        signature = "mul(x: N, y: N)"

        def infer(x, y):
            return TensorType(x.dtype, broadcast("mul", x, y))

    class less(Op):
        """x < y."""

        signature = "less(x: N, y: N)"

        def infer(x, y):
            return TensorType(boolean, broadcast("less", x, y))

    class exp(Op):
        """e to the x."""

        signature = "exp(x: F)"

        def infer(x):
            return x

    class leaky_relu(Op):
        """x where x > 0, else slope*x."""

        signature = "leaky_relu(x: F, *, slope: float = 0.01)"

        def infer(x, slope):
            return x

    class sum(Op):
        """The sum of all elements."""

        signature = "sum(x: N)"

        def infer(x):
            return TensorType(x.dtype, ())

    class gather(Op):
        """Rows of x by index."""

        signature = "gather(x: T, index: X)"

        def infer(x, index):
            return TensorType(x.dtype, (*index.shape, *x.shape[1:]))

    class reshape(Op):
        """The same elements under another shape."""

        signature = "reshape(x: T, *, shape: dims)"

        def infer(x, shape):
            t = TensorType(x.dtype, shape)
            if t.size != x.size:
                raise Mismatch(f"{x} cannot become {t}", "shape")
            return t

    class split(Op):
        """x in pieces of equal size."""

        signature = "split(x: T, *, pieces: int, axis: int = 0)"
        results = ("y...",)

        def infer(x, pieces, axis):
            if not 1 <= pieces <= 100:
                raise Mismatch("1 to 100 pieces", "pieces")
            if not 0 <= axis < x.rank:
                raise Mismatch(f"{x} has no axis {axis}", "axis")
            shape = list(x.shape)
            shape[axis] = shape[axis] // pieces
            return (TensorType(x.dtype, tuple(shape)),) * pieces

    class concat(Op):
        """All operands one behind the other."""

        signature = "concat(x: T*, *, axis: int = 0)"

        def infer(*types, axis):
            shape = list(types[0].shape)
            if any(t.rank != len(shape) for t in types):
                raise Mismatch("concat wants operands of one rank")
            if not 0 <= axis < len(shape):
                raise Mismatch(f"{types[0]} has no axis {axis}", "axis")
            for t in types[1:]:
                shape[axis] = shape[axis] + t.shape[axis]
            return TensorType(types[0].dtype, tuple(shape))

    class linear(Op):
        """x Wᵀ + b."""

        signature = "linear(x: F, weight: F, bias: F?)"

        def infer(x, weight, bias):
            if not x.rank or weight.rank != 2:
                raise Mismatch(f"linear takes no {weight} as weight", 1)
            if x.shape[-1] != weight.shape[1]:
                raise Mismatch(f"linear wants {weight.shape[1]} columns, not {x.shape[-1]}", 0)
            return TensorType(x.dtype, (*x.shape[:-1], weight.shape[0]))

    class cast(Op):
        """x as another element type."""

        signature = "cast(x: T, *, dtype: dtype)"

        def infer(x, dtype):
            return x.with_dtype(dtype)

    class zeros(Op):
        """Zeros."""

        signature = "zeros(*, shape: dims, dtype: dtype = f32)"

        def infer(shape, dtype):
            return TensorType(dtype, shape)

    class full(Op):
        """One number everywhere."""

        signature = "full(*, shape: dims, value: number, dtype: dtype = f32)"

        def infer(shape, value, dtype):
            return TensorType(dtype, shape)

    class normal(Op):
        """Normally distributed numbers."""

        signature = "normal(step: X?, *, shape: dims, std: float = 1.0, dtype: dtype = f32)"

        def infer(step, shape, std, dtype):
            return TensorType(dtype, shape)

    class label(Op):
        """x, with a text and numbers that mean nothing."""

        signature = 'label(x: T, *, text: str = "", on: bool = false, axes: ints = none)'

        def infer(x, text, on, axes):
            return x

    found = dict(OPS)
    OPS.clear()
    OPS.update(kept)
    return found


SMALL_OPS = declare()
