"""Pairs of scripts that differ in one line: it is named. What differs by rounding alone is not."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from opstep.frontends.torch.eager.pairing import (  # noqa: E402
    aligned,
    diff_pairs,
    diff_scripts,
)
from opstep.frontends.torch.eager.partings import report  # noqa: E402
from opstep.runtime.ir.errors import InputError  # noqa: E402

PAIRS = Path(__file__).parent / "pairs"
NAMES = sorted(p.stem.removesuffix("_a") for p in PAIRS.glob("*_a.py"))
HEAD = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
"""
LOOP = """
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(16, 6)
    y = net(x.to(net[0].weight.dtype)).float()
    loss = y.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(name, text):
        Path(name).write_text(text)
        return (name,)

    return written


def expected(name, side):
    """The line in which this script of a pair, or a module of it, differs."""
    own = f"{name}_{side}.py"
    (found,) = (
        f"{side}: {file.relative_to(PAIRS)}:{number}: "
        for file in (PAIRS / own, PAIRS / "modules" / own) if file.exists()
        for number, text in enumerate(file.read_text().split("\n"), 1) if "# expect" in text
    )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def pairs():
    """What is found in all pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(PAIRS)
        found = diff_pairs([((f"{n}_a.py",), (f"{n}_b.py",)) for n in NAMES])
        return {name: (one.same, report(one)) for name, one in zip(NAMES, found, strict=True)}


@pytest.mark.parametrize("name", NAMES)
def test_the_line_is_named_first(pairs, name):
    same, text = pairs[name]
    for side, line in zip("ab", text.split("\n"), strict=False):
        assert line.startswith(expected(name, side)), text
    assert same == (name == "dtype")  # a type is nothing but rounding


def test_values_and_settings_are_in_the_report(pairs):
    assert "LayerNorm: eps is 1e-05 in a, 1e-06 in b" in pairs["eps"][1]
    assert "p is 0.1 in a, 0.0 in b" in pairs["config"][1]
    assert "other is 0.5 in a, 0.25 in b" in pairs["clipping"][1]
    assert "a has ReLU, b GELU" in pairs["activation"][1]
    assert "a ended" in pairs["detach"][1] or "b ended" in pairs["detach"][1]


def test_what_is_not_a_difference(write):
    same = write("a.py", HEAD + LOOP)
    texts = {
        "again": LOOP,
        "printed": LOOP.replace("opt.zero_grad()", "print(loss.item()); opt.zero_grad()"),
        "written otherwise": LOOP.replace("y.pow(2).mean()", "(y * y).sum() / y.numel()"),
        "an op more": LOOP.replace("= net(", "= 1.0 * net("),
        "in f64": LOOP.replace("opt =", "net.double()\nopt ="),
        "in bf16": LOOP.replace("opt =", "net.bfloat16()\nopt ="),
    }
    others = [write(f"b{k}.py", HEAD + text) for k, text in enumerate(texts.values())]
    for what, found in zip(texts, diff_pairs([(same, b) for b in others]), strict=True):
        assert found.same, f"{what}\n{report(found)}"
        assert found.compared > 100
        assert found.rounded == what.startswith("in "), what


def test_a_difference_among_rounding(write):
    a = write("a.py", HEAD + LOOP.replace("opt =", "net.bfloat16()\nopt ="))
    b = write("b.py", HEAD + LOOP.replace("y.pow(2).mean()", "y.pow(2).sum()"))
    first = diff_scripts(a, b).first
    assert first is not None and first.kind == "only"
    line = next(k for k, t in enumerate((HEAD + LOOP).split("\n"), 1) if "loss = " in t)
    assert first.lines[1].line == line and first.lines[0].line == line + 1


def test_one_script_in_two_settings(write):
    text = HEAD + LOOP.replace("lr=1e-3", "lr=float(sys.argv[1])")
    (name,) = write("train.py", text)
    assert diff_scripts((name, "0.1"), (name, "0.1")).same
    found = diff_scripts((name, "0.1"), (name, "0.2"))
    assert found.first is not None and found.first.kind == "attribute"
    assert found.first.a is not None and found.first.a.phase == "update"
    assert any("lr is 0.1 in a, 0.2 in b" in text for text in found.settings)


def test_a_seed_and_data_of_its_own(write):
    data = "import numpy\nz = torch.from_numpy(numpy.arange(6.0) * {}) + 1\n"
    a, b = write("a.py", HEAD + data.format(1)), write("b.py", HEAD + data.format(2))
    other = write("c.py", HEAD.replace("manual_seed(0)", "manual_seed(1)"))
    first, second = diff_pairs([(a, b), (a, other)])
    assert first.first is not None and first.first.kind == "input"
    assert second.first is not None and second.first.kind == "random"
    assert any(
        s.startswith("manual_seed: arguments is [0] in a, [1] in b") for s in second.settings
    )


COMPILED = HEAD.replace("nn.LayerNorm(8)", "nn.BatchNorm1d(8)") + LOOP.replace(
    "net(x.to(net[0].weight.dtype))", "call(x)").replace(
    "opt =", "call = torch.compile(net) if 'compiled' in sys.argv else net\nopt =")  # fmt: skip


def test_what_the_script_compiles_runs_compiled(write):
    (name,) = write("train.py", COMPILED)
    found = diff_scripts((name,), (name, "compiled"))
    assert found.same and found.rounded, report(found)
    assert "only b runs compiled" in report(found)
    (other,) = write("other.py", COMPILED.replace("nn.ReLU()", "nn.GELU()"))
    found = diff_scripts((name,), (other, "compiled"))
    line = next(k for k, t in enumerate(COMPILED.split("\n"), 1) if "nn.ReLU" in t)
    assert [f.line for f in found.first.lines] == [line, line], report(found)


def test_two_checkpoints(write):
    text = HEAD + "net.load_state_dict(torch.load(sys.argv[1], weights_only=True))\n" + LOOP
    (name,) = write("train.py", text)
    state = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    ).state_dict()
    torch.save(state, "a.pt")
    state["3.bias"][1] += 0.01
    torch.save(state, "b.pt")
    found = diff_scripts((name, "a.pt"), (name, "b.pt"))
    line = next(k for k, t in enumerate(text.split("\n"), 1) if "load_state_dict" in t)
    assert [f.line for f in found.first.lines] == [line, line]
    assert found.first.message == "copy_ (3.bias) is given other data"
    assert found.first.elements.first == (1,)
    assert diff_scripts((name, "a.pt"), (name, "a.pt")).first is None


def test_steps_end_the_scripts(write):
    (name,) = write("train.py", HEAD + LOOP)
    assert diff_scripts((name,), (name,), steps=1).steps == (1, 1)
    assert diff_scripts((name,), (name,), steps=9).steps == (3, 3)


def test_without_room_for_values(write):
    """Samples of large ones are compared."""
    a = write(
        "a.py", HEAD.replace("6, 8", "600, 800") + "y = net[0](torch.randn(80, 600))\nz = y * 2\n"
    )
    b = write("b.py", Path(a[0]).read_text().replace("y * 2", "y * 2.5"))
    found = diff_scripts(a, b, budget=1)
    assert found.first is not None and found.first.kind == "attribute"
    assert diff_scripts(a, a, budget=1).same


def test_a_script_that_is_not_there(write):
    with pytest.raises(InputError, match=r"none\.py"):
        diff_scripts(("none.py",), write("a.py", HEAD))


def test_ops_that_are_inserted_do_not_break_the_pairing():
    a, b = "abcabcabc", "abcxabcabyc"
    pairs = aligned(a, b, str)
    assert len(pairs) == 9 and all(a[i] == b[j] for i, j in pairs.items())
    assert list(pairs.values()) == sorted(pairs.values())
    assert aligned([(1, "a"), (2, "b")], [(1, "a"), (3, "b")], str, lambda o: o[1]) == {0: 0, 1: 1}
