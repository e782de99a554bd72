"""The networks of `examples/` as they are trained, and the losses of the same in PyTorch."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import peers
import torch
import torch.nn.functional as F

import opstep

ROOT = Path(__file__).resolve().parents[2]
DATA = runpy.run_path(str(ROOT / "examples" / "training_data.py"))
Arrays = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]

LENET_LOSS = """
graph loss(images: u8[N, 8, 8], labels: i32[N]) -> f32[] {
  pixels = cast(images, dtype=f32)
  scaled = mul(pixels, 0.0625)
  x = reshape(scaled, shape=[N, 1, 8, 8])
  logits = lenet(x)
  l = softmax_cross_entropy(logits, labels)
  return l
}
"""


@dataclass(frozen=True)
class Network:
    """`batch(size, rng)` makes inputs of the graph `loss`; `peer(params, inputs)` is that loss in
    PyTorch.
    """

    file: str
    batch: Callable[[int, np.random.Generator], Arrays]
    peer: Callable[[Tensors, Tensors], torch.Tensor]
    more: str = ""  # text behind the file's

    def program(self) -> opstep.Program:
        path = ROOT / "examples" / self.file
        return opstep.loads(path.read_text(encoding="utf-8") + self.more, str(path))

    def tensors(self, program: opstep.Program) -> Tensors:
        """The params, of which PyTorch derives, and the states."""
        found = {n: torch.tensor(v) for n, v in program.params.items()}
        for name in trained(program):
            found[name].requires_grad_()
        return found


def trained(program: opstep.Program) -> list[str]:
    return [d.name.text for d in program.module.tensors.values() if d.kind == "param"]


def alexnet_batch(size: int, rng: np.random.Generator) -> Arrays:
    x = rng.standard_normal((size, 1, 224, 224), np.float32)
    return {"x": x, "label": rng.integers(0, 10, size).astype(np.int32)}


def digits(size: int, rng: np.random.Generator) -> Arrays:
    with np.load(DATA["DIGITS"]) as data:
        chosen = rng.choice(len(data["train_images"]), size, replace=False)
        return {"images": data["train_images"][chosen], "labels": data["train_labels"][chosen]}


def lenet(p: Tensors, given: Tensors) -> torch.Tensor:
    x = given["images"].float()[:, None] * 0.0625
    return F.cross_entropy(peers.lenet(x, p), given["labels"].long())


def alexnet(p: Tensors, given: Tensors) -> torch.Tensor:
    """With dropout by the masks in `given`, if there are any, or else by PyTorch's own."""
    x, label = given["x"], given["label"].long()
    if "m1" in given:
        return F.cross_entropy(peers.alexnet(x, p, (given["m1"], given["m2"])), label)
    masks = [F.dropout(torch.ones(len(x), 4096, device=x.device), 0.5) for _ in range(2)]
    return F.cross_entropy(peers.alexnet(x, p, masks), label)


def unet(p: Tensors, given: Tensors) -> torch.Tensor:
    return F.cross_entropy(peers.unet(given["x"], p, training=True), given["mask"].long())


def unet_two(p: Tensors, given: Tensors) -> torch.Tensor:
    mask, edge = peers.unet_two(given["a"], given["b"], p)
    of_mask = F.cross_entropy(mask, given["mask"].long())
    return of_mask + F.cross_entropy(edge, given["edge"].long()) * 0.5


def recurrent(p: Tensors, given: Tensors) -> torch.Tensor:
    rows = given["images"].float().transpose(0, 1) * 0.0625
    return F.cross_entropy(peers.recurrent(rows, p), given["labels"].long())


def gpt(p: Tensors, given: Tensors) -> torch.Tensor:
    text = given["text"].long()
    scores = peers.gpt(text[:, :-1], p)
    return F.cross_entropy(scores.flatten(0, 1).float(), text[:, 1:].flatten())


NETWORKS = {
    "LeNet": Network("lenet.opg", digits, lenet, LENET_LOSS),
    "AlexNet": Network("alexnet.opg", alexnet_batch, alexnet),
    "U-Net": Network("unet.opg", DATA["unet"], unet),
    "U-Net without norm": Network("unet_plain.opg", DATA["unet"], unet),
    "U-Net of two pictures": Network("unet_two.opg", DATA["unet_two"], unet_two),
    "recurrent net": Network("recurrent_digits.opg", digits, recurrent),
    "GPT": Network("gpt.opg", DATA["text"], gpt),
}


def on_torch(batch: Arrays) -> Tensors:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in batch.items()}


def gradients(network: Network, size: int, seed: int = 0) -> dict[str, float]:
    """By name, the loss too: the largest difference to PyTorch's, over its largest element."""
    program = network.program()
    batch = network.batch(size, np.random.default_rng(seed))
    given = on_torch(batch)
    if network.file == "alexnet.opg":
        given |= on_torch(program.run("masks", {"x": batch["x"]}))
        program = _in_f64(program)
        batch, given = (
            {k: v.astype("f8") if v.dtype == "f4" else v for k, v in batch.items()},
            {k: v.double() if v.is_floating_point() else v for k, v in given.items()},
        )
    names = trained(program)
    with_grad = program.with_grad("loss", names)
    tensors = network.tensors(program)
    found = dict(zip(["", *names], _first_and_last(with_grad, batch, len(names)), strict=True))
    loss = network.peer(tensors, given)
    loss.backward()
    expected = {"": loss} | {n: tensors[n].grad for n in names}
    return {name: _difference(array, expected[name]) for name, array in found.items()}


def _in_f64(program: opstep.Program) -> opstep.Program:
    """Where pools choose the largest, sums of f32 that differ by rounding choose differently."""
    text = program.module.source.text.replace("f32", "f64")
    wide = opstep.loads(text.replace("shape=[N, 4096])", "shape=[N, 4096], dtype=f64)"))
    for name, array in program.params.items():
        wide.params[name] = np.asarray(array, "f8") if array.dtype == "f4" else array
    return wide


def _first_and_last(program: opstep.Program, batch: Arrays, count: int) -> list[np.ndarray]:
    """The loss and the gradients, without further results of the graph."""
    outputs = program.run("loss_grad", batch).outputs
    return [outputs[0], *outputs[len(outputs) - count :]]


def _difference(found: np.ndarray, expected: torch.Tensor) -> float:
    theirs = expected.detach().numpy()
    scale = np.abs(theirs).max() or 1.0
    return float(np.abs(found - theirs).max() / scale)
