"""Hunts of compiled models on a device that is behind: nobody waits for each call, and what is told
is what happened.
"""

from __future__ import annotations

import atexit
import warnings
from pathlib import Path

import late
import pytest
import torch
from torch import nn

from opstep.cli.main import main
from opstep.frontends.scripts.watching import NumericsWarning
from opstep.frontends.torch import hunting
from opstep.frontends.torch import outstanding as module
from opstep.frontends.torch.outstanding import findings, outstanding


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(outstanding, "sees_optimizers", False)
    outstanding.calls.clear()
    findings.clear()
    yield late.use(monkeypatch)
    outstanding.calls.clear()
    findings.clear()


def line_of(marker: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(k for k, t in enumerate(lines, 1) if t.endswith(f'# {marker}'))}"


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.log(self.scale * x)  # log


GOOD, BAD = torch.ones(4), torch.tensor([1.0, -2, 3, 4])


def trained(compiled, model: nn.Module, batches, x=lambda t: t.clone(), **options):
    """Waits of the host in each forward and backward, and in each step of the optimizer."""
    fast, optimizer = (
        compiled(model, hunt=True, **options),
        torch.optim.SGD(model.parameters(), 0.125),
    )
    device, found = late.device, []
    for batch in batches:
        optimizer.zero_grad()
        device.waits = 0
        fast(x(batch)).sum().backward()
        found.append(device.waits)
        optimizer.step()
        found.append(device.waits - found[-1])
    return found


def test_training_waits_before_params_change_and_not_before(compiled, device):
    waits = trained(compiled, Logarithm(), [GOOD] * 4)
    assert min(waits[:1] + waits[3::2]) > 0
    assert waits[2::2] == [0, 0, 0]
    assert findings == []


def test_nobody_waits_for_what_is_done(compiled, device):
    device.reached = True
    assert trained(compiled, Logarithm(), [GOOD] * 3) == [0] * 6


def test_a_nan_is_told_before_params_change(compiled, device):
    model = Logarithm()
    with pytest.warns(NumericsWarning, match="log of a negative number"):
        trained(compiled, model, [GOOD * 2, BAD])
    (hunt,) = findings
    assert (hunt.graph, hunt.step) == ("forward", 1)
    assert hunt.first.where.imported == line_of("log")
    assert hunt.inputs["x"].tolist() == BAD.tolist()
    assert hunt.inputs["scale"].tolist() == [0.875] * 4


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.sqrt(self.scale * x)  # sqrt


def test_of_the_backward(compiled, device):
    with pytest.warns(NumericsWarning, match="division by 0"):
        trained(compiled, Root(), [GOOD, torch.zeros(4)])
    (hunt,) = findings
    assert (hunt.graph, hunt.step, hunt.first.where.imported) == ("backward", 1, line_of("sqrt"))
    line = "in the backward of `return torch.sqrt(self.scale * x)  # sqrt`, "
    assert f"{line}{line_of('sqrt')}: division by 0\n" in hunt.report()
    assert "help: The slope of sqrt at 0 is infinite" in hunt.report()
    assert ".opg" not in hunt.report()  # texts that nobody sees


def forwards(compiled, model: nn.Module, batches):
    """Calls that nobody waits for, but for the first, which is good."""
    fast = compiled(model, hunt=True)
    with torch.no_grad():
        fast(GOOD.clone())
        late.device.waits = 0
        for batch in batches:
            fast(batch)
    assert late.device.waits == 0
    return fast


def test_a_later_call_tells_of_an_earlier_one(compiled, device):
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericsWarning)
        fast = forwards(compiled, Logarithm(), [GOOD.clone(), BAD.clone(), GOOD.clone()])
    device.reached = True
    with pytest.warns(NumericsWarning, match="log of a negative number"), torch.no_grad():
        fast(GOOD.clone())
    assert [h.step for h in findings] == [2]
    assert not outstanding.calls or outstanding.calls[0].step == 4


def test_to_look_at_findings_waits(compiled, device):
    forwards(compiled, Logarithm(), [GOOD.clone(), BAD.clone()])
    assert findings.told == []
    with pytest.warns(NumericsWarning):
        assert len(findings) == 1
    assert device.waits > 0


def test_the_end_of_the_process_waits(compiled, device, monkeypatch):
    ends = []
    monkeypatch.setattr(atexit, "register", ends.append)
    hunting._look_out.cache_clear()
    forwards(compiled, Logarithm(), [BAD.clone()])
    (end,) = ends
    with pytest.warns(NumericsWarning):
        end()
    assert len(findings.told) == 1


def test_graphs_are_told_in_the_order_of_their_calls(compiled, device):
    class Other(Logarithm):
        def forward(self, x):
            return torch.sqrt(self.scale * x - 1)  # other

    first, second = compiled(Other(), hunt=True), compiled(Logarithm(), hunt=True)
    with torch.no_grad():
        for x in (GOOD, BAD):
            second(x.clone())
            first(x.clone())
    with pytest.warns(NumericsWarning):
        places = [h.first.where.imported for h in findings]
    assert places == [line_of("log"), line_of("other")]


# --- inputs that are not what they were ---


def test_what_was_overwritten_is_not_replayed(compiled, device):
    x = BAD.clone()
    forwards(compiled, Logarithm(), [x])
    x.fill_(-7)
    with pytest.warns(NumericsWarning, match="changed in place") as told:
        (hunt,) = findings
    assert f"{told[0].filename}:{told[0].lineno}" == line_of("log")
    assert (hunt.step, hunt.findings, hunt.inputs) == (1, [], {})
    assert hunt.overwritten == [f"log log: f32[4] in graph inference: NaN, from {line_of('log')}"]
    assert hunt.found


def test_then_calls_are_waited_for(compiled, device):
    x = GOOD.clone()
    fast = forwards(compiled, Logarithm(), [x])
    x.add_(1)
    assert findings == []
    device.waits = 0
    with pytest.warns(NumericsWarning, match="log of a negative number"), torch.no_grad():
        fast(x.copy_(BAD))
    assert device.waits > 0
    assert findings.told[0].inputs["x"].tolist() == BAD.tolist()


def test_one_of_several_calls(compiled, device):
    """Flags do not say which: they are those of all calls that were not read."""
    x = BAD.clone()
    forwards(compiled, Logarithm(), [x, GOOD.clone(), x])
    x.zero_()
    with pytest.warns(NumericsWarning, match="a step from 1 to 3 is bad"):
        (hunt,) = findings
    assert (hunt.step, hunt.until) == (1, 3)


def test_what_another_call_raises_again_is_replayed(compiled, device):
    x = GOOD.clone()
    forwards(compiled, Logarithm(), [x, BAD.clone()])
    x.zero_()
    with pytest.warns(NumericsWarning, match="log of a negative number"):
        (hunt,) = findings
    assert hunt.step == 2
    assert not hunt.overwritten


@pytest.mark.parametrize("change", ["elements", "memory"])
def test_changes_that_pytorch_does_not_count(compiled, device, change):
    model = Logarithm()
    forwards(compiled, model, [BAD.clone()])
    if change == "elements":
        before = model.scale._version
        model.scale.data.mul_(2)
        assert model.scale._version == before
    else:
        model.scale.data = torch.full((4,), 2.0)
    with pytest.warns(NumericsWarning, match="changed in place"):
        (hunt,) = findings
    assert hunt.overwritten
    assert not hunt.findings


def test_params_that_no_optimizer_of_pytorch_changes(compiled, device):
    model = Logarithm()
    fast = compiled(model, hunt=True)

    def step(x):
        fast(x.clone()).sum().backward()
        model.scale.data -= 0.125 * model.scale.grad
        model.scale.grad = None

    step(GOOD)
    step(GOOD)
    with pytest.warns(NumericsWarning, match="log of a negative number"):
        step(BAD)
    (hunt,) = findings
    assert (hunt.graph, hunt.step) == ("forward", 2)
    assert hunt.inputs["scale"].tolist() == pytest.approx([0.875 - 0.125 / 0.875] * 4)


def test_tensors_whose_changes_nobody_counts(compiled, device):
    fast = compiled(Logarithm(), hunt=True)
    with torch.inference_mode():
        x = GOOD.clone()
        fast(x)
        x.fill_(-2)
        with pytest.warns(NumericsWarning, match="log of a negative number"):
            fast(x)
    assert [h.step for h in findings] == [1]


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.log(self.norm(x) * 0 + self.scale * x)  # norm


def test_what_the_model_updates_itself_is_kept(compiled, device):
    good, bad = torch.ones(2, 4), torch.stack([GOOD, BAD])
    model = Normed()
    with pytest.warns(NumericsWarning, match="log of a negative number"):
        waits = trained(compiled, model, [good * 2, good * 3, bad])
    assert waits[2::2] == [0, 0]
    (hunt,) = findings
    assert (hunt.step, hunt.first.where.imported) == (2, line_of("norm"))
    seen = next(v for k, v in hunt.inputs.items() if k.endswith("running_mean"))
    torch.testing.assert_close(torch.tensor(seen), torch.full((4,), 0.1 * 3 + 0.9 * 0.2))


# --- what is no finding ---


def test_masks_cost_nothing_after_the_first_call(compiled, device):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(8, 8)

        def forward(self, x):
            q = self.q(x)
            return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericsWarning)
        waits = trained(compiled, Attention(), [torch.randn(2, 5, 8)] * 4)
    assert waits[2::2] == [0, 0, 0]
    assert findings == []


def test_flags_that_do_not_come_again(compiled, device):
    forwards(compiled, Logarithm(), [GOOD.clone()])
    (flags,) = outstanding.calls[-1].verdict.flags._plans.values()
    flags.words[0, 0] = 1
    with pytest.warns(NumericsWarning, match="op by op, from the same state, none is"):
        (hunt,) = findings
    assert line_of("log") in hunt.unrepeated[0]


# --- what is kept ---


def test_few_calls_are_kept(compiled, device):
    fast = forwards(compiled, Logarithm(), [GOOD.clone() for _ in range(module.CALLS)])
    for _ in range(5):
        with torch.no_grad():
            fast(GOOD.clone())
        assert len(outstanding.calls) <= module.CALLS + 1
    assert device.waits > 0


def test_little_memory_is_kept(compiled, device, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 40)
    forwards(compiled, Logarithm(), [GOOD.clone(), GOOD.clone()])
    assert [c.nbytes for c in outstanding.calls] == [16, 16], "params are there in any case"
    fast = compiled(Logarithm(), hunt=True)
    with torch.no_grad():
        fast(GOOD.clone())
        fast(GOOD.clone())
    assert device.waits > 0


def test_a_child_has_no_calls_of_its_parent(compiled, device):
    forwards(compiled, Logarithm(), [BAD.clone()])
    outstanding.forget()
    assert findings == []


def test_a_compiled_optimizer(compiled, device):
    model = Logarithm()
    fast, optimizer = compiled(model, hunt=True), torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for x in (GOOD, GOOD):
        fast(x.clone()).sum().backward()
        step()
    with pytest.warns(NumericsWarning, match="log of a negative number"):
        fast(BAD.clone()).sum().backward()
    step()
    assert [h.step for h in findings] == [2]


SCRIPT = """
import torch
from torch import nn


class Logarithm(nn.Module):
    def forward(self, x):
        return torch.log(x)


net = Logarithm()
for x in (1.0, -2.0):
    net(torch.full((4,), x))
print("the end")
"""


def test_a_script_that_ended_is_told_of(device, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    torch._dynamo.reset()
    assert main(["hunt", "--compiled", "train.py"]) == 5
    out = capsys.readouterr().out
    assert out.startswith("the end\ninference: step 1 is bad")
    assert "log of a negative number" in out
    assert not outstanding.calls
