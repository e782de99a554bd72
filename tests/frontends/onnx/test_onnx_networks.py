"""Whole networks, as both exporters of PyTorch write them and as ONNX Runtime quantises them: they
give what ONNX Runtime gives, and one wrong node among hundreds is found. Those of torchvision and
transformers are tried with ``--every-op``.
"""

from __future__ import annotations

import random
import zlib

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")
runtime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")

import zoo  # noqa: E402
from networks import HAND_WRITTEN, PAST, exported  # noqa: E402

from opstep.frontends.onnx.comparing import Compared, diff_onnx  # noqa: E402
from opstep.frontends.onnx.naming import readable  # noqa: E402
from opstep.frontends.onnx.rules import all_rules  # noqa: E402
from opstep.frontends.onnx.rules.registry import RULES  # noqa: E402
from opstep.runtime.ir.types import i32  # noqa: E402
from opstep.runtime.transforms.builder import Var  # noqa: E402

KNOWN = (
    "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "densenet", "swin_t",
    "convnext_tiny", "googlenet", "shufflenet_v2_x0_5", "fasterrcnn_backbone", "deeplab", "bert",
    "roberta", "distilbert", "gpt2", "llama", "gemma", "mixtral", "t5", "bart", "whisper", "clip",
    "vit", "wav2vec2", "mamba", PAST,
)  # fmt: skip
REFUSED = {  # by one of PyTorch's exporters
    ("t5", True), *((name, False) for name in ("gpt2", "llama", "gemma", "mixtral", "whisper")),
}  # fmt: skip
QUANTISED = {  # network, form, types of activations and weights, scales by channel
    "resnet18": ("QDQ", "QUInt8", "QInt8", True),
    "resnet50": ("QOperator", "QUInt8", "QInt8", True),
    "mobilenet_v2": ("QOperator", "QUInt8", "QInt8", True),
    "efficientnet_b0": ("QDQ", "QUInt8", "QInt8", True),
    "googlenet": ("QOperator", "QUInt8", "QInt8", True),
    "squeezenet1_1": ("QDQ", "QUInt8", "QInt8", True),
    "bert": ("QDQ", "QUInt8", "QInt8", False), "vit": ("QOperator", "QInt8", "QInt8", False),
}  # fmt: skip
MOVES = (
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Reshape", "Shape", "Slice", "Split",
    "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


def quantised(folder, name: str, form: str, active: str, weights: str, per_channel: bool):
    model, inputs = exported(name, dynamo=False)
    onnx.save(model, folder / "plain.onnx")

    class Samples(quantization.CalibrationDataReader):
        def __init__(self):
            self.left = [inputs] * 2

        def get_next(self):
            return self.left.pop() if self.left else None

    kinds = quantization.QuantType
    quantization.quantize_static(
        folder / "plain.onnx", folder / "net.onnx", Samples(), per_channel=per_channel,
        quant_format=quantization.QuantFormat[form], activation_type=kinds[active],
        weight_type=kinds[weights],
    )  # fmt: skip
    return inputs


def written(folder, name: str, how: str) -> dict[str, np.ndarray]:
    """Writes net.onnx; gives inputs. `how`: "traced", "exported", "quantised", "optimised"."""
    if how == "quantised":
        made = QUANTISED.get(name, ("QDQ", "QUInt8", "QInt8", False))
        return quantised(folder, name, *made)
    model, inputs = exported(name, dynamo=how == "exported")
    onnx.save(model, folder / "net.onnx")
    if how == "optimised":
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(folder / "net.onnx")
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        content = model.SerializeToString()
        runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return inputs


def pytest_generate_tests(metafunc):
    if "network" not in metafunc.fixturenames:
        return
    cases = [(name, how) for name in HAND_WRITTEN for how in ("traced", "exported")]
    cases += [("detector", "quantised"), ("diffusion", "optimised")]
    if zoo.AVAILABLE:
        every = metafunc.config.getoption("--every-op")
        known = [
            (name, how) for name in KNOWN for how in ("traced", "exported")
            if (name, how == "exported") not in REFUSED
        ]  # fmt: skip
        known += [(name, "quantised") for name in QUANTISED]
        known += [(name, "optimised") for name in ("bert", "vit", "clip", "distilbert")]
        few = [(PAST, "traced"), ("bert", "optimised"), ("squeezenet1_1", "quantised")]
        cases += known if every else few
    ids = ["-".join(case) for case in cases]
    metafunc.parametrize("network", cases, ids=ids, scope="module")


@pytest.fixture(scope="module")
def net(network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    return folder / "net.onnx", written(folder, *network)


def test_a_network_gives_what_onnx_runtime_gives(agrees, net, network):
    path, inputs = net
    agrees(path, inputs, 1e-4 if network[0] in KNOWN else 1e-5)


def test_all_values_of_it_agree(net):
    path, inputs = net
    assert diff_onnx(path, by_name(Compared(path), inputs)).same


def test_one_wrong_node_in_it_is_found(net, network, monkeypatch):
    path, inputs = net
    all_rules()
    rng = random.Random(zlib.crc32("-".join(network).encode()))
    chosen, given = rng.choice(calls_of_rules(path, monkeypatch)), by_name(Compared(path), inputs)
    spoil(monkeypatch, chosen, rng.choice([everywhere, in_one_place]))
    found = diff_onnx(path, given)
    assert not found.same
    assert (found.first.op, readable(found.first.value)) == chosen[1:]
    assert found.first.verdict == "a", found.first


def by_name(compared: Compared, inputs) -> dict[str, np.ndarray]:
    taken = [b.name.text for b in compared.program.graph("main").inputs]
    return dict(zip(taken, inputs.values(), strict=True))


def calls_of_rules(path, monkeypatch) -> list[tuple[int, str, str]]:
    """Calls that compute something of tensors: their number, the operator and what it gives."""
    made: list[tuple[int, str, str]] = []
    with monkeypatch.context() as m:
        watch(m, lambda n, op, name, b, y: made.append((n, op, name)) or y)
        compared = Compared(path)
    seen = {readable(v) for v in compared.named}
    return [c for c in made if c[1] not in MOVES and c[2] in seen]


def watch(monkeypatch, of) -> None:
    """Has ``of(number, operator, name, body, result)`` give what rules give."""
    count = iter(range(1 << 30))

    def watched(op, rule):
        def call(b, *inputs, **attrs):
            number, name = next(count), b.prefix
            found = rule.function(b, *inputs, **attrs)
            return of(number, op, name, b, found)

        return rule._replace(function=call)

    for (domain, op), rules in list(RULES.items()):
        monkeypatch.setitem(RULES, (domain, op), [watched(op, r) for r in rules])


def spoil(monkeypatch, chosen, wrong) -> None:
    def of(number, op, name, b, found):
        if number != chosen[0]:
            return found
        many = isinstance(found, list) or type(found) is tuple
        return [wrong(b, found[0]), *found[1:]] if many else wrong(b, found)

    watch(monkeypatch, of)


def everywhere(b, y: Var) -> Var:
    if y.dtype.is_float:
        return b.add(b.mul(y, 1.001), 0.001)
    return in_one_place(b, y)


def in_one_place(b, y: Var) -> Var:
    """One element of it is another one."""
    first = b.equal(
        b.reshape(b.iota(shape=[y.type.size], axis=0), shape=list(y.shape)), y.type.size // 2
    )
    if y.dtype.is_float:
        return b.where(first, b.add(y, b.mul(b.max(b.abs(y)), 0.02)), y)
    wide = b.cast(y, dtype=i32)
    next_to = b.where(b.greater(wide, 0), b.sub(wide, 1), b.add(wide, 1))
    return b.where(first, b.cast(next_to, dtype=y.dtype), y)
