"""Models of torchvision and transformers in tiny configurations, with random weights."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

warnings.filterwarnings("ignore")


def _define_ops() -> None:
    """Those of torchvision, without which its import fails, where its library was built for another
    PyTorch: beside one for CPUs alone it cannot be loaded.
    """
    found = importlib.util.find_spec("torchvision")
    with suppress(OSError):
        torch.ops.load_library(Path(found.origin).with_name("_C.so") if found else "_C.so")
        return
    for name in ("nms", "qnms"):
        _OPS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_OPS = torch.library.Library("torchvision", "FRAGMENT")
_define_ops()
AVAILABLE = all(importlib.util.find_spec(m) for m in ("torchvision", "transformers"))


@dataclass
class Case:
    """A model's maker; it and the args are made with a fixed seed. `dims`: the axes of the args
    that may have any size, by position. `tolerance`: of the largest difference to eager, relative
    to the largest value.
    """

    make: Callable[[], nn.Module]
    args: Callable[[], Any]
    dims: tuple[dict[int, str], ...] = ()
    tolerance: float = 1e-5
    other: dict[str, int] | None = None  # sizes of the symbols in a second run
    low: bool = True  # whether it runs in bf16, too


def image(size: int, batch: int = 2) -> Callable[[], tuple]:
    return lambda: (torch.randn(batch, 3, size, size),)


def tokens(length: int = 8, batch: int = 2) -> Callable[[], tuple]:
    return lambda: (torch.randint(1, 90, (batch, length)),)


def vision(name: str, size: int = 64, tolerance: float = 1e-5, **config: Any) -> Case:
    def make() -> nn.Module:
        import torchvision

        model = torchvision.models.get_model(name, weights=None, num_classes=10, **config)
        return settled(shortened(model))

    return Case(make, image(size), ({0: "batch"},), tolerance, {"batch": 3})


def shortened(model: nn.Module) -> nn.Module:
    """Of blocks in a row that differ in weights alone two are left."""
    for row in [m for m in model.modules() if isinstance(m, nn.Sequential)]:
        blocks = [re.sub(r"StochasticDepth\(.*?\)", "", repr(block)) for block in row]
        for k in reversed(range(2, len(blocks))):
            if blocks[k] == blocks[k - 1] == blocks[k - 2]:
                del row[k]
    return model


def settled(model: nn.Module) -> nn.Module:
    """Batch norms with statistics as of a trained network."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
            nn.init.uniform_(module.weight, 0.8, 1.2)
    return model


class Only(nn.Module):
    """A model whose result is one tensor, or a tuple of them, of what it returns."""

    def __init__(self, model: nn.Module, choose: Callable[[Any], Any], **kwargs: Any):
        super().__init__()
        self.model = model
        self.choose = choose
        self.kwargs = kwargs

    def forward(self, *args):
        return self.choose(self.model(*args, **self.kwargs))


class Named(nn.Module):
    """A model that is called with its arguments by name."""

    def __init__(self, model: nn.Module, *names: str):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *args):
        return self.model(**dict(zip(self.names, args, strict=True)))[0]


def language(kind: str, tolerance: float = 1e-5, any_length: bool = True, **config: Any) -> Case:
    """A language model of transformers: `kind` is the prefix of its classes, or "Prefix:Class"."""

    def make() -> nn.Module:
        import transformers

        prefix, _, name = kind.partition(":")
        settings = {
            "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 37, "max_position_embeddings": 64,
        } | config  # fmt: skip
        settings = {k: v for k, v in settings.items() if v is not None}
        made = getattr(transformers, f"{prefix}Config")(**settings)
        model = getattr(transformers, name or f"{prefix}ForCausalLM")(made)
        return Only(model, lambda found: found[0], use_cache=False)

    dims = {0: "batch", 1: "length"} if any_length else {0: "batch"}
    return Case(make, tokens(), (dims,), tolerance, {"batch": 3, "length": 11})


GPT2 = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "hidden_size": None,
    "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None,
    "max_position_embeddings": None,
}  # fmt: skip


def t5() -> nn.Module:
    import transformers

    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, use_cache=False
    )
    return Named(transformers.T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids")


def bart() -> nn.Module:
    import transformers

    config = transformers.BartConfig(
        vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37,
        max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return Named(
        transformers.BartForConditionalGeneration(config), "input_ids", "decoder_input_ids"
    )


def whisper() -> nn.Module:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=37, decoder_ffn_dim=37, num_mel_bins=16,
        max_source_positions=20, max_target_positions=32, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return Named(
        transformers.WhisperForConditionalGeneration(config),
        "input_features", "decoder_input_ids",
    )  # fmt: skip


def clip() -> nn.Module:
    import transformers

    small = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 37,
    }  # fmt: skip
    text = {**small, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 98}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**small, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )  # fmt: skip
    return Named(transformers.CLIPModel(config), "input_ids", "pixel_values")


def vit() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
        image_size=32, patch_size=8,
    )  # fmt: skip
    return Only(transformers.ViTForImageClassification(config), lambda found: found[0])


def wav2vec2() -> nn.Module:
    import transformers

    config = transformers.Wav2Vec2Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=37, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3),
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return Only(transformers.Wav2Vec2ForCTC(config), lambda found: found[0])


def mamba() -> nn.Module:
    import transformers

    config = transformers.MambaConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=2, state_size=4, use_cache=False
    )
    return Only(transformers.MambaForCausalLM(config), lambda found: found[0])


def densenet() -> nn.Module:
    import torchvision

    return settled(torchvision.models.DenseNet(block_config=(2, 3, 2, 2), num_classes=10))


def deeplab() -> nn.Module:
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=5
    )
    return Only(settled(model), lambda found: found["out"])


def detector() -> nn.Module:
    """The backbone of Faster R-CNN: a ResNet with a feature pyramid."""
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    return Only(settled(backbone), lambda found: tuple(found.values()))


def two(first: Callable[[], tuple], second: Callable[[], tuple]) -> Callable[[], tuple]:
    return lambda: (*first(), *second())


LAYERS = {"num_key_value_heads": 2}
CASES: dict[str, Case] = {
    "alexnet": vision("alexnet", 80),
    "vgg11_bn": vision("vgg11_bn", 64),
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50"),
    "mobilenet_v2": vision("mobilenet_v2"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "efficientnet_b0": vision("efficientnet_b0"),
    "densenet": Case(densenet, image(64), ({0: "batch"},), 1e-5, {"batch": 3}),
    "convnext_tiny": vision("convnext_tiny"),
    "vit_b_32": vision("vit_b_32", 64, image_size=64),
    "swin_t": vision("swin_t"),
    "swin_v2_t": vision("swin_v2_t"),
    "shufflenet_v2_x0_5": vision("shufflenet_v2_x0_5"),
    "squeezenet1_1": vision("squeezenet1_1"),
    "regnet_y_400mf": vision("regnet_y_400mf"),
    "googlenet": vision("googlenet", aux_logits=False, init_weights=False),
    "deeplab": Case(deeplab, image(64), ({0: "batch"},), 1e-5, {"batch": 3}),
    "fasterrcnn_backbone": Case(detector, image(64), ({0: "batch"},), 1e-5, {"batch": 3}),
    "bert": language("Bert:BertModel"),
    "roberta": language("Roberta:RobertaForMaskedLM"),
    "distilbert": language(
        "DistilBert:DistilBertModel", dim=32, n_layers=2, n_heads=4, hidden_dim=37,
        hidden_size=None, num_hidden_layers=None, num_attention_heads=None, intermediate_size=None,
    ),
    "gpt2": language("GPT2:GPT2LMHeadModel", **GPT2),
    "gpt_neox": language("GPTNeoX"),
    "llama": language("Llama", **LAYERS),
    "mistral": language("Mistral", sliding_window=4, **LAYERS),
    "qwen2": language("Qwen2", **LAYERS),
    "qwen3": language("Qwen3", head_dim=8, **LAYERS),
    "gemma": language("Gemma", head_dim=8, **LAYERS),
    "phi": language("Phi"),
    "mixtral": language(
        "Mixtral", num_local_experts=2, num_experts_per_tok=2,
        experts_implementation="batched_mm", **LAYERS,
    ),
    "opt": language("OPT", ffn_dim=37, word_embed_proj_dim=32),
    "t5": Case(
        t5, two(tokens(), tokens(6)), ({0: "batch", 1: "length"}, {0: "batch", 1: "target"}),
        1e-5, {"batch": 3, "length": 11, "target": 5},
    ),
    "bart": Case(
        bart, two(tokens(), tokens(6)), ({0: "batch", 1: "length"}, {0: "batch", 1: "target"}),
        1e-5, {"batch": 3, "length": 11, "target": 5},
    ),
    "whisper": Case(
        whisper, two(lambda: (torch.randn(2, 16, 40),), tokens(6)),
        ({0: "batch"}, {0: "batch", 1: "target"}), 1e-5, {"batch": 3, "target": 5},
    ),
    "clip": Case(
        clip, two(tokens(), image(32)), ({0: "texts"}, {0: "images"}), 1e-5,
        {"texts": 3, "images": 4},
    ),
    "vit": Case(vit, image(32), ({0: "batch"},), 1e-5, {"batch": 3}),
    "wav2vec2": Case(wav2vec2, lambda: (torch.randn(2, 400),), ({0: "batch"},), 1e-5, {"batch": 3}),
    "mamba": Case(mamba, tokens(), ({0: "batch"},), 1e-5, {"batch": 3}),
}  # fmt: skip


def model_of(case: Case, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple]:
    """The model, to be looked at only, and its args."""
    torch.manual_seed(0)
    model = case.make().eval().to(dtype)
    return model, cast(case.args(), dtype)


def cast(args: tuple, dtype: torch.dtype) -> tuple:
    return tuple(a.to(dtype) if a.is_floating_point() else a for a in args)


def dynamic(case: Case) -> list[dict[int, Any]]:
    """The dims of a case for `torch.export`: one `Dim` for each name."""
    dims: dict[str, Any] = {}
    return [
        {axis: dims.setdefault(name, Dim(name, min=2, max=60)) for axis, name in axes.items()}
        for axes in case.dims
    ]


def resized(case: Case, args: tuple) -> tuple:
    """Other args, with the case's other sizes."""
    torch.manual_seed(1)
    found = []
    for k, a in enumerate(args):
        axes = case.dims[k] if k < len(case.dims) else {}
        shape = [(case.other or {}).get(axes.get(i, ""), n) for i, n in enumerate(a.shape)]
        found.append(
            torch.randn(shape, dtype=a.dtype)
            if a.is_floating_point()
            else torch.randint(1, 90, shape)
        )
    return tuple(found)


def outputs_of(model: nn.Module, args: tuple) -> list[torch.Tensor]:
    """Eager's results that are tensors, in order."""
    with torch.no_grad():
        return [t for t in torch.utils._pytree.tree_leaves(model(*args)) if hasattr(t, "shape")]


def distance(ours: Any, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    import numpy as np

    a = np.asarray(ours).astype(np.float64)
    b = theirs.detach().double().numpy()
    assert a.shape == b.shape, f"{a.shape} against {b.shape}"
    if not a.size:
        return 0.0
    assert (np.isfinite(a) == np.isfinite(b)).all()
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.where(np.isfinite(b), a - b, 0)).max()
    return float(difference / max(np.abs(np.where(np.isfinite(b), b, 0)).max(), 1e-30))
