"""Models that everybody knows, as torchvision and transformers have them, with random weights."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

PACKAGES = ("torch", "torchvision", "transformers")
MISSING = [name for name in PACKAGES if find_spec(name) is None]
TOKENS = 128  # a text's
_kept: list[Any] = []


def define_ops() -> Any:
    """torchvision, which transformers looks for, too, describes ops of its library. That was built
    for another PyTorch, maybe; then it is not loaded, and they are defined here, as long as what is
    returned is kept.
    """
    try:
        import torchvision  # noqa: F401 - whether it can be
    except RuntimeError:
        import torch

        ops = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            ops.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        return ops


def vision(name: str) -> Callable[[int], tuple[Any, Any]]:
    """A model of torchvision for images of 224 x 224."""

    def make(batch: int) -> tuple[Any, Any]:
        import torchvision

        return as_trained(getattr(torchvision.models, name)(weights=None)), images(batch)

    return make


def as_trained(model: Any) -> Any:
    """The model with statistics as a trained one has them."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)  # pyright: ignore
            torch.nn.init.uniform_(module.running_var, 0.8, 1.2)  # pyright: ignore
    return model


def images(batch: int) -> Any:
    import torch

    return torch.randn(batch, 3, 224, 224)


def vit_b_16(batch: int) -> tuple[Any, Any]:
    import torch
    import torchvision

    model = torchvision.models.vit_b_16(weights=None)
    torch.nn.init.normal_(model.heads[0].weight, std=0.02)  # pyright: ignore - it was zero
    return model, images(batch)


def gpt2(batch: int) -> tuple[Any, Any]:
    import transformers

    settings = transformers.GPT2Config(use_cache=False)
    return first_of(transformers.GPT2LMHeadModel(settings)), tokens(batch, settings.vocab_size)


def bert_base(batch: int) -> tuple[Any, Any]:
    import transformers

    settings = transformers.BertConfig()
    return first_of(transformers.BertModel(settings)), tokens(batch, settings.vocab_size)


def tokens(batch: int, vocabulary: int) -> Any:
    import torch

    return torch.randint(0, vocabulary, (batch, TOKENS))


def first_of(model: Any) -> Any:
    """A model that gives the first of what `model` gives."""
    import torch

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x)[0]

    return First()


MODELS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "ResNet-50": vision("resnet50"),
    "MobileNet v2": vision("mobilenet_v2"),
    "ViT-B/16": vit_b_16,
    "GPT-2 124M": gpt2,
    "BERT-base": bert_base,
}
MORE = {  # for a GPU, which has the time
    "ResNet-18": vision("resnet18"),
    "VGG-16": vision("vgg16"),
    "ConvNeXt-T": vision("convnext_tiny"),
}


def made(name: str, batch: int) -> tuple[Any, Any]:
    """(model for inference, input), the same each time."""
    import torch

    warnings.filterwarnings("ignore")
    _kept.append(define_ops())
    torch.manual_seed(0)
    model, x = {**MODELS, **MORE}[name](batch)
    return model.eval(), x


def to_train(name: str, batch: int) -> tuple[Any, Any, Any]:
    """(model for training that gives its loss, input, labels), the same each time. Nothing is
    drawn, so that losses can be compared.
    """
    import torch

    model, x = made(name, batch)
    for module in model.modules():
        if type(module).__name__ in ("Dropout", "StochasticDepth"):
            module.p = 0.0  # pyright: ignore
    with torch.no_grad():
        y = model(x[:1])
    labels = torch.arange(batch * y[..., 0].numel()) % y.shape[-1]

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, labels):
            y = self.model(x)
            return torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), labels)

    return WithLoss().train(), x, labels


def distance(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest element."""
    expected = expected.double()
    return float((found.double() - expected).abs().max() / expected.abs().max())
