"""What `from_torch` refuses: why, and the line of the user's model."""

from __future__ import annotations

import plain
import pytest
import torch
from torch import nn
from torch.export import Dim

import opstep

BATCH = Dim("batch")


class Applied(nn.Module):
    """Calls a function, with a tensor of its own."""

    def __init__(self, function, w=None):
        super().__init__()
        self.function = function
        self.register_buffer("w", w)

    def forward(self, x):
        return self.function(x) if self.w is None else self.function(x, self.w)


def branching(x):
    if x.sum() > 0:  # a branch
        return x + 1
    return x - 1


def looping(x):
    for _ in range(int(x.max())):  # a loop
        x = x + 1
    return x


def failing(x):
    return x @ x  # a product


@torch.library.custom_op("opstep_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


X = torch.ones(3, 4)
REFUSED = {
    "branch": (branching, "depends on the values of a tensor", "# a branch"),
    "loop": (looping, "depends on the values of a tensor", "# a loop"),
    "shapes": (failing, "must have same reduction dim", "# a product"),
    "numpy": (lambda x: torch.from_numpy(x.numpy() * 2), "leaves PyTorch here", ""),
    "nonzero": (lambda x: x.nonzero(), "aten.nonzero.default cannot be imported", "x.nonzero()"),
    "mask": (lambda x: x[x > 0], "a size depends on data", "x[x > 0]"),
    "custom": (lambda x: twice(x), "opstep_tests.twice.default cannot be imported", "twice(x)"),
    "complex": (lambda x: torch.fft.fft(x).real, "aten._fft_r2c.default", "torch.fft.fft"),
    "nested": (lambda x: torch.nested.nested_tensor([x]).to_padded_tensor(0.0), "nested", ""),
    "quantised": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
        "quantize_per_tensor", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_imported_says_why_and_where(name, capfd):
    function, reason, line = REFUSED[name]
    with pytest.raises(opstep.OpstepError) as caught:
        opstep.from_torch(Applied(function), (X,))
    message = str(caught.value)
    assert reason in message
    assert line in message
    assert f"{__file__}:" in message
    assert capfd.readouterr() == ("", "")


def test_tensors_without_a_counterpart_are_named():
    for w, reason in (
        (torch.eye(3).to_sparse(), "w: tensors that are sparse_coo"),
        (torch.ones(4, dtype=torch.complex64), "w: tensors of torch.complex64"),
    ):
        with pytest.raises(opstep.OpstepError, match=reason):
            opstep.from_torch(Applied(lambda x, w: x, w), (X,))
    with pytest.raises(opstep.OpstepError, match="same device"):
        opstep.from_torch(Applied(lambda x, w: x + w, torch.ones(4, device="meta")), (X,))


def test_all_missing_ops_are_told_at_once():
    def several(x):
        a = x.nonzero()
        b = torch.fft.fft(x).real
        c = torch.fft.fft(x + 1).real
        return a, b, c

    with pytest.raises(opstep.OpstepError) as caught:
        opstep.from_torch(Applied(several), (X,))
    assert "aten.nonzero.default" in str(caught.value)
    reason = "tensors of torch.complex64 have no counterpart (2 times)"
    assert f"aten._fft_r2c.default cannot be imported: {reason}" in str(caught.value)
    places = {(m.op, m.line - several.__code__.co_firstlineno) for m in caught.value.missing}
    assert {("aten.nonzero.default", 1), ("aten._fft_r2c.default", 2)} <= places


JAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    "model, x, told",
    [
        (Applied(torch.relu), JAGGED, r"args\[0\]: nested tensors have no counterpart"),
        (nn.LazyLinear(3), X, "a lazy module has no weights yet"),
        (Applied(lambda x: x[x > 0]), X, r"hint: keep the shape: torch\.where"),
    ],
)
def test_the_reason_in_our_words(model, x, told):
    with pytest.raises(opstep.OpstepError, match=told):
        opstep.from_torch(model, (x,))


def test_what_to_do_where_pytorch_could_run_it():
    ops = torch.linalg
    for helped in (ops.det, ops.slogdet, ops.inv, ops.lu, ops.lu_factor, ops.inv_ex):
        with pytest.raises(opstep.OpstepError, match="hint: fallback='torch' lets PyTorch run it"):
            opstep.from_torch(Applied(helped), (torch.eye(3),))
    for function in (torch.nonzero, torch.fft.fft):
        with pytest.raises(opstep.OpstepError) as caught:
            opstep.from_torch(Applied(function), (torch.eye(3),))
        assert "fallback" not in str(caught.value)


@pytest.mark.parametrize(
    "args, kwargs, reason",
    [
        (X, None, "it is a tuple"),
        ((), None, "missing"),
        ((X, X), None, "2 positional arguments|too many"),
        ((X.numpy(),), None, "an array of NumPy"),
        (("text",), None, "text|str"),
        ((X,), {"other": X}, "other"),
        ((X,), X, "kwargs is a Tensor"),
    ],
)
def test_wrong_arguments(args, kwargs, reason):
    with pytest.raises(opstep.OpstepError, match=reason):
        opstep.from_torch(Applied(branching), args, kwargs)


@pytest.mark.parametrize(
    "shapes, reason",
    [
        ({"y": {0: BATCH}}, "top-level keys must be the arg names"),
        (({0: BATCH, 5: BATCH},), "an axis that its input does not have"),
        (([BATCH],), "has length|expected|dimension|rank"),
        (({0: BATCH},), "works for 3 only"),
    ],
)
def test_dynamic_shapes_that_do_not_fit(shapes, reason):
    with pytest.raises(opstep.OpstepError, match=reason):
        opstep.from_torch(Applied(lambda x: x.reshape(3, 4)), (X,), dynamic_shapes=shapes)


def test_what_is_no_model():
    with pytest.raises(opstep.OpstepError, match="a function is no PyTorch model"):
        opstep.from_torch(failing, (X,))
    with pytest.raises(opstep.OpstepError, match="TorchScript"):
        opstep.from_torch(torch.jit.script(nn.Linear(4, 4)), (X,))


def test_without_pytorch_the_message_says_how_to_install_it(monkeypatch):
    from importlib import metadata

    def version(_):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(opstep.OpstepError, match=r"pip install 'opstep\[torch\]'"):
        opstep.from_torch(plain.mlp(), (X,))
    monkeypatch.setattr(metadata, "version", lambda _: "2.5.1")
    with pytest.raises(opstep.OpstepError, match=r"2\.5\.1 is too old"):
        opstep.from_torch(plain.mlp(), (X,))
