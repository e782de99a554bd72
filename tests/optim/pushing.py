"""A program whose gradients are what one gives it, and the same params in PyTorch."""

from __future__ import annotations

import numpy as np
import torch

import opstep

SHAPES = {"scale": (), "fc.b": (5,), "fc.w": (4, 6), "conv.w": (3, 2, 2, 3)}


def text(dtype: str) -> str:
    """The loss is the sum of all params times inputs, which so are its gradients."""
    params, inputs, lines, terms = "", [], "", []
    for k, (name, shape) in enumerate(SHAPES.items()):
        t = f"{dtype}[{', '.join(map(str, shape))}]"
        params += f"param {name}: {t} = normal(std=0.5)\n"
        inputs.append(f"x{k}: {t}")
        lines += f"  y{k} = mul({name}, x{k})\n  s{k} = sum(y{k})\n"
        terms.append(f"s{k}")
    lines += "  a = add(s0, s1)\n  b = add(s2, s3)\n  l = add(a, b)\n  return l\n"
    return f"{params}\ngraph loss({', '.join(inputs)}) -> {dtype}[] {{\n{lines}}}\n"


def gradients(steps: int, dtype: str, scale: float = 1.0) -> list[dict[str, np.ndarray]]:
    """Random gradients by input, of sizes that differ from step to step."""
    rng = np.random.default_rng(0)
    kind = np.dtype("f8" if dtype == "f64" else "f4")
    made = []
    for _ in range(steps):
        size = scale * 10.0 ** rng.uniform(-2, 1)
        made.append(
            {
                f"x{k}": np.asarray(rng.normal(0, size, s), kind)
                for k, s in enumerate(SHAPES.values())
            }
        )
    return made


def leaves(program) -> dict[str, torch.Tensor]:
    """The params, for an optimizer of PyTorch."""
    return {n: torch.tensor(program.params[n], requires_grad=True) for n in SHAPES}


def push(tensors: dict[str, torch.Tensor], batch) -> None:
    for k, tensor in enumerate(tensors.values()):
        tensor.grad = torch.tensor(batch[f"x{k}"])


def run_beside(optimizer, theirs, dtype: str, steps: int = 25, scale: float = 1.0, **options):
    """Runs both for some steps on the same gradients, and compares after each.

    `theirs` makes the optimizer of PyTorch from the tensors. What rounding leaves is measured by
    the largest value that a param ever had.
    """
    program = opstep.loads(text(dtype)).with_optimizer("loss", optimizer, **options)
    tensors = leaves(program)
    other = theirs(list(tensors.values()))
    tolerance, largest = (1e-12 if dtype == "f64" else 1e-6), 1.0
    for batch in gradients(steps, dtype, scale):
        program.run("loss_step", batch, threads=1)
        push(tensors, batch)
        other.step()
        wanted = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        largest = max(largest, *(float(np.abs(w).max()) for w in wanted.values()))
        for name, values in wanted.items():
            np.testing.assert_allclose(
                program.params[name], values, rtol=tolerance, atol=tolerance * largest, err_msg=name
            )
    return program
