"""What `options` of the backend do: hunts, recordings, debuggers, fallbacks; what errors say."""

from __future__ import annotations

import re
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from agreement import called
from dap.client import Client
from torch import nn

import opstep
from opstep.frontends.scripts import watching
from opstep.frontends.scripts.watching import NumericsWarning
from opstep.frontends.torch import calling


def line_of(marker: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(k for k, line in enumerate(file, 1) if line.rstrip().endswith(f"# {marker}"))


@pytest.fixture
def findings():
    found = opstep.frontends.torch.findings
    found.clear()
    yield found
    found.clear()


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = self.scale * x
        z = torch.log(y)  # log
        return z.sum()


class Root(nn.Module):
    """Finite; the gradient at 0 is not."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = self.scale * x
        z = torch.sqrt(y)  # sqrt
        return z.sum()


# --- hunts ---


def test_a_nan_of_the_forward_is_told_with_its_line(compiled, findings):
    fast, good = compiled(Logarithm(), hunt=True), torch.ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericsWarning)
        fast(good).backward()
        fast(good).backward()
    with pytest.warns(NumericsWarning, match="log of a negative number") as told:
        fast(torch.tensor([1.0, -2, 3, 4])).backward()
    (warning,) = (w for w in told if w.category is NumericsWarning)
    assert (warning.filename, warning.lineno) == (__file__, line_of("log"))
    (hunt,) = findings
    assert (hunt.graph, hunt.step) == ("forward", 2)
    assert hunt.first.where.imported == f"{__file__}:{line_of('log')}"
    assert hunt.inputs["x"].tolist() == [1, -2, 3, 4]


def test_it_is_told_once(compiled, findings):
    fast = compiled(Logarithm(), hunt=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            fast(torch.tensor([1.0, -2, 3, 4])).backward()
    assert [w.category for w in told].count(NumericsWarning) == len(findings) == 1


def test_an_infinity_of_the_backward_is_told_with_the_line_of_the_forward(compiled, findings):
    fast = compiled(Root(), hunt=True)
    with pytest.warns(NumericsWarning, match="division by 0") as told:
        fast(torch.zeros(4)).backward()
    (finding,) = (w for w in told if w.category is NumericsWarning)
    assert finding.lineno == line_of("sqrt")
    assert [h.graph for h in findings] == ["backward"]


def test_masks_are_no_findings(compiled, findings):
    def f(q):
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum()

    fast = compiled(f, hunt=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericsWarning)
        for _ in range(3):
            fast(torch.randn(2, 5, 8, requires_grad=True)).backward()
    assert findings == []


# --- recordings, debuggers, modes ---


def test_runs_are_recorded(compiled, tmp_path):
    files = tmp_path / "runs.db", tmp_path / "run.pftrace"
    model = nn.Linear(6, 3)
    fast = compiled(model, workspace=files[0], trace=files[1])
    expected = model(torch.ones(4, 6))
    for _ in range(3):
        torch.testing.assert_close(fast(torch.ones(4, 6)), expected)
        fast(torch.ones(4, 6)).sum().backward()
    assert compiled(model, workspace=files[0], trace=files[1])(torch.ones(4, 6)) is not None
    (recording,) = watching._recordings.values()
    recording.close()
    watching._recordings.clear()
    assert files[1].stat().st_size
    with opstep.Workspace(files[0]) as workspace:
        graphs = workspace.sql("select graph from runs order by graph").rows
        assert [row[0] for row in graphs] == ["backward", "forward"]
        assert "grad_weight" in {t.name for t in workspace.tensors()}


def test_an_editor_can_attach(compiled):
    model, x = nn.Linear(6, 3), torch.randn(4, 6)
    expected = model(x)
    fast = compiled(model, listen=0)
    fast(x)
    port = opstep.debug._attached.listener.port
    try:
        with Client.connect(port) as client:
            client.attach(stopOnEntry=True)
            client.request("configurationDone")
            assert opstep.debug.wait_for_client(20)
            results = []
            thread = threading.Thread(target=lambda: results.append(fast(x).detach()))
            thread.start()
            client.expect_stop("entry")
            assert client.where()[0] == "forward"
            client.request("continue", threadId=1)
            thread.join(30)
        assert not thread.is_alive()
        torch.testing.assert_close(results[0], expected.detach())
        torch.testing.assert_close(fast(x), expected)
    finally:
        opstep.debug.stop_listening()
        opstep.api.program.interposed = None
        watching._listening.clear()


@pytest.mark.parametrize(
    "options",
    [{"mode": "debug"}, {"streams": 2}, {"alloc": "fresh"}, {"fill": "nan"}, {"sync": "op"},
     {"threads": 1}, {"kernels": "numba"}],
    ids=str,
)  # fmt: skip
def test_no_setting_changes_a_bit(compiled, options):
    model, x = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)), torch.randn(5, 6)
    params = list(model.parameters())
    plain = torch.autograd.grad(compiled(model)(x).sum(), params)
    torch._dynamo.reset()
    found = torch.autograd.grad(compiled(model, **options)(x).sum(), params)
    for a, b in zip(found, plain, strict=True):
        assert torch.equal(a, b)


# --- what cannot be ---


def test_an_unknown_option(compiled):
    with pytest.raises(
        Exception, match=r"there is no option hunts; there are mode, .* fallback"
    ) as e:
        compiled(nn.Linear(2, 2), hunts=True)(torch.ones(1, 2))
    assert "did you mean hunt?" in str(e.value)


@pytest.mark.parametrize(
    "option, told",
    [({"mode": "fast"}, "mode is 'fast'; it can be async or debug"),
     ({"hunt": 1}, "hunt is 1; it can be True or False"),
     ({"autotune": "yes"}, "autotune is 'yes'; it can be True or False"),
     ({"workspace": 3}, "workspace is 3; it can be the name of a file"),
     ({"trace": ""}, "trace is ''; it can be the name of a file"),
     ({"recording": "r"}, "recording is 'r'; it can be an opstep.Recording"),
     ({"listen": True}, "listen is True; it can be a port: 0 to 65535"),
     ({"listen": 70000}, "listen is 70000; it can be")],
    ids=str,
)  # fmt: skip
def test_a_value_that_an_option_cannot_have(compiled, option, told):
    with pytest.raises(Exception, match=re.escape(told)):
        compiled(nn.Linear(2, 2), **option)(torch.ones(1, 2))


def test_modes_of_other_backends():
    fast = torch.compile(nn.Linear(2, 2), backend="opstep", mode="max-autotune")
    with pytest.raises(Exception, match="is for other backends"):
        fast(torch.ones(1, 2))


def eigenvalues(x):
    return torch.linalg.eigvalsh(x @ x.t()) + 1  # eigvalsh


def test_an_op_without_a_counterpart(compiled):
    with pytest.raises(Exception, match=r"aten\._linalg_eigh\.default") as e:
        compiled(eigenvalues)(torch.eye(3))
    assert f"{__file__}:{line_of('eigvalsh')}" in str(e.value)
    assert 'hint: options={"fallback": True} lets PyTorch run it' in str(e.value)


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, scale, batch):
        return scale * (batch["signal"] * self.phase).abs()  # waves


def test_inputs_without_a_counterpart_have_the_names_of_python(compiled):
    batch = {"signal": torch.ones(3, dtype=torch.complex64)}
    with pytest.raises(Exception, match="complex64") as e:
        compiled(Waves())(torch.ones(3), batch)
    said = str(e.value)
    for name in ("batch.signal", "phase"):
        assert f"error: {name} cannot be imported: tensors of torch.complex64" in said
    assert f"{__file__}:{line_of('waves')}" in said


def test_nested_tensors_are_refused(compiled):
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(Exception, match="x cannot be imported: nested tensors have no counterpart"):
        compiled(lambda x: x * 2)(x)


def test_sizes_that_vary_make_pytorch_say_nothing(compiled):
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(0, 1), nn.Linear(3, 2))
    fast, x = compiled(model, dynamic=True), torch.randn(5, 6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fast(x), model(x))


class OnMeta(nn.Module):
    """Some of its results may have no elements."""

    def forward(self, x, y):
        return x + 1, y * 2


def test_pytorch_runs_what_is_on_meta(compiled):
    fast, nothing = compiled(nn.Linear(4, 2, device="meta")), torch.empty(3, 4, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = fast(nothing.requires_grad_())
        y.sum().backward()
    assert (y.device.type, y.shape, nothing.grad.shape) == ("meta", (3, 2), (3, 4))
    with pytest.warns(UserWarning, match="some of its tensors are on meta") as told:
        x, y = compiled(OnMeta())(torch.ones(2), nothing)  # both
    assert (told[0].filename, told[0].lineno) == (__file__, line_of("both"))
    assert (x.tolist(), y.device.type) == ([2, 2], "meta")


REFUSED = {  # arguments that no rule takes; PyTorch has a definition
    "embedding": lambda w: F.embedding(torch.tensor([1, 1, 2]), w, scale_grad_by_freq=True).sin(),
    "loss": lambda w: F.binary_cross_entropy_with_logits(
        w, w.sign().relu(), pos_weight=torch.ones(4) / 3
    ),
    "loss of probabilities": lambda w: F.cross_entropy(w, w.detach().softmax(1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pytorchs_definition_is_used_where_a_rule_refuses_its_arguments(compiled, name):
    f, w = REFUSED[name], torch.randn(5, 4, requires_grad=True)
    found, expected = compiled(f)(w), f(w)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.sum(), w)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_where_the_definition_does_not_help_the_reason_is_that_of_the_op(compiled):
    with pytest.raises(Exception, match=r"std\.correction.* a correction that is no integer"):
        compiled(lambda x: x.std(0, correction=0.5))(torch.randn(3, 4))


def test_pytorch_runs_what_cannot_be_translated_where_that_is_wanted(compiled):
    def spectrum(x):
        return torch.fft.fft(x).abs()  # complex

    fast, x = compiled(spectrum, fallback=True), torch.randn(3, 3)
    with pytest.warns(UserWarning, match="PyTorch runs the inference itself") as told:
        torch.testing.assert_close(fast(x), spectrum(x))
    one = next(w for w in told if "itself" in str(w.message))
    assert (one.filename, one.lineno) == (__file__, line_of("complex"))
    text = str(one.message)
    assert "aten._fft_r2c.default" in text
    assert f"{__file__}:{line_of('complex')}" in text


# --- programs ---


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.sin(self.fc(h)) * h  # inner


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x):
        return self.second(self.first(x)).exp()  # outer


def test_modules_names_and_lines_of_both_halves(compiled, programs):
    compiled(Outer())(torch.randn(2, 4)).sum().backward()
    forward, backward = programs["forward"], programs["backward"]
    assert list(forward.graphs) == ["forward", "Inner"]
    assert {re.sub(r"_\d$", "", g) for g in backward.graphs} == {"backward", "Inner_backward"}
    inputs = [b.name.text for b in forward.graphs["forward"].inputs]
    assert {"x", "first_norm_weight", "second_fc_bias"} <= set(inputs)
    returned = [v.text for v in backward.graphs["backward"].body[-1].values]
    assert {"grad_first_norm_weight", "grad_second_fc_bias"} <= set(returned)
    for program, inner in ((forward, "Inner"), (backward, "Inner_backward")):
        lines = {s.at.line for s in program.graphs[inner].body[:-1]}
        assert lines == {line_of("inner"), line_of("inner") - 1}
        main, *_ = program.graphs.values()
        calls = [s for s in main.body[:-1] if s.callee.text.startswith("Inner")]
        assert sorted(s.at.module for s in calls) == ["first", "second"]
        assert {s.at.line for s in calls} == {line_of("outer")}


def test_a_layer_is_one_op(compiled, programs):
    compiled(nn.Linear(6, 3))(torch.randn(2, 5, 6)).sum().backward()
    assert called(programs["forward"].graphs["forward"]) == ["linear"]
    assert "transpose" not in called(programs["backward"].graphs["backward"])


# --- GPUs ---


def test_on_a_gpu_a_step_comes_behind_the_current_stream(monkeypatch):
    """There need not be one for this: what runs is told which stream is PyTorch's."""

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: 4710 + index, raising=False
    )
    for device, stream in (("cuda:1", 4711), ("cuda", 4713)):
        current = calling._streams_of(torch.device(device))
        assert current is not None and current() == stream
    assert calling._streams_of(torch.device("cpu")) is None
    assert calling._name(torch.device("cuda", 0)) == "cuda"
    assert calling._name(torch.device("cuda", 1)) == "cuda:1"
