"""Ops that PyTorch runs itself, one by one: through both doors, in all that looks at programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from dap.client import Client, Refused
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._library.effects import EffectType

import opstep
from opstep.cli.main import main
from opstep.differing.diff import diff
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module

calls: list[str] = []  # of bump's kernel


@torch.library.custom_op("fallbacklib::bump", mutates_args=())
def bump(x: torch.Tensor, factor: float, n: int = 2, mode: str = "plain") -> torch.Tensor:
    calls.append(mode)
    return (x * factor + n).T.contiguous().T  # not contiguous


@bump.register_fake
def _(x, factor, n=2, mode="plain"):
    return torch.empty_like(x.T).T


bump.register_autograd(
    lambda ctx, g: (g * ctx.factor, None, None, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("fallbacklib::added", mutates_args=("x",))
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * 2


@added.register_fake
def _(x, y):
    return torch.empty_like(x)


@torch.library.custom_op("fallbacklib::itself", mutates_args=())
def itself(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x) if x.numel() < 0 else x.clone()


@torch.library.custom_op("fallbacklib::fails", mutates_args=())
def fails(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("not today")


@fails.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op(
    "fallbacklib::drawn", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def drawn(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


@drawn.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("fallbacklib::logged", mutates_args=())
def logged(x: torch.Tensor, word: str) -> torch.Tensor:
    calls.append(word)
    return x.sum()


@logged.register_fake
def _(x, word):
    return x.new_empty(())


torch.fx.node.has_side_effect(torch.ops.fallbacklib.logged.default)


@torch.library.custom_op("fallbacklib::printed", mutates_args=())
def printed(x: torch.Tensor, word: str) -> None:
    calls.append(word)


printed.register_fake(lambda x, word: None)
printed.register_effect(EffectType.ORDERED)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = bump(self.linear(x), 1.5, x.shape[0], "edge")
        matrix = y.T @ y + 3 * torch.eye(4)
        values, vectors = torch.linalg.eigh(matrix)
        solved = torch.linalg.solve(matrix, vectors)
        root = torch.linalg.cholesky(matrix)
        return y.relu(), values, solved @ vectors.T, root, torch.special.bessel_j1(y)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(k for k, line in enumerate(lines, 1) if text in line)


def close(found, expected) -> None:
    torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-4, atol=1e-4)


def imported(model, *args, **options):
    return opstep.from_torch(model.eval(), args, fallback="torch", **options)


def refused(model, *args, **options) -> str:
    with pytest.raises(opstep.OpstepError) as caught:
        opstep.from_torch(model, args, **options)
    return str(caught.value)


# --- imported models ---


@pytest.mark.parametrize("mode", ["async", "debug"])
def test_values_are_those_of_eager_mode(mode):
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(6, 4)
    program = imported(model, x, dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    for count in (6, 3):
        x = torch.randn(count, 4)
        found = program.run("main", {"x": x}, mode=mode)
        for name, expected in zip(found, model(x), strict=True):
            close(found[name], expected.detach())


def test_the_text_names_the_op_its_types_and_its_line():
    program = imported(Mixed(), torch.randn(6, 4))
    text = print_module(program.module)
    line = line_of("y = bump(")
    assert 'y: f32[6, 4] = torch.fallbacklib.bump(linear, factor=1.5, n=6, mode="edge") at ' in text
    assert f'test_fallback.py":{line}' in text
    assert "f32[4], vectors: f32[4, 4] = torch.aten.linalg_eigh(matrix)" in text
    assert "= linear(x, linear.weight, linear.bias)" in text  # all else is ours
    assert print_module(parse(text)) == text


def test_ops_with_a_definition_by_others_are_not_left_to_pytorch():
    class Model(nn.Module):
        def forward(self, x):
            return nn.functional.logsigmoid(bump(x, 2.0)).sinc()

    text = print_module(imported(Model(), torch.randn(3, 4)).module)
    assert text.count(" = torch.") == 1


def test_an_operand_that_is_changed_is_one_more_result():
    class Model(nn.Module):
        def forward(self, x, y):
            z = x.clone()
            return added(z, y), z

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    program = imported(Model(), x, y)
    before = x.numpy().copy()
    found = program.run("main", {"x": x, "y": y})
    for name, expected in zip(found, Model()(x, y), strict=True):
        close(found[name], expected)
    assert (x.numpy() == before).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_all_element_types_stay_what_they_are(dtype):
    class Model(nn.Module):
        def forward(self, x):
            return bump(x, 2.0, 1)

    x = torch.arange(12).reshape(3, 4).to(dtype)
    if dtype is torch.int32:
        x = x.float()
    program = imported(Model(), x)
    (found,) = program.run("main", {"x": x}).values()
    close(found.astype(np.float32), Model()(x).float())


def test_lists_of_tensors_and_tensors_left_out():
    text = (
        "graph main(x: f32[2, 3], y: f32[2, 3]) -> f32[4, 3], f32[2, 3] {\n"
        "  a: f32[4, 3] = torch.aten.cat(x, y, tensors=2, dim=0)\n"
        "  b: f32[2, 3] = torch.aten.layer_norm(x, normalized_shape=[3], weight=none, eps=0.1)\n"
        "  return a, b\n}\n"
    )
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    a, b = opstep.loads(text, fallback="torch").run("main", {"x": x, "y": y}).values()
    close(a, torch.cat([x, y]))
    close(b, nn.functional.layer_norm(x, [3], eps=0.1))


def test_without_it_these_ops_are_an_error():
    assert "fallbacklib.bump.default cannot be imported" in refused(Mixed(), torch.randn(6, 4))


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda x: drawn(x), "draws random numbers"),
        (lambda x: torch.fft.fft(x).real, "complex"),
        (lambda x: x.nonzero(), "a size depends on data"),
    ],
    ids=["random", "complex", "data"],
)
def test_what_pytorch_does_not_run_alone_either(compute, reason):
    class Model(nn.Module):
        def forward(self, x):
            return compute(x)

    assert reason in refused(Model(), torch.randn(3, 4), fallback="torch")


def test_another_fallback_is_refused():
    assert "fallback is 'jax'; it can be None or 'torch'" in refused(
        Mixed(), torch.randn(6, 4), fallback="jax"
    )


# --- looking at programs ---

TEXT = """\
graph main(x: f32[N, 3]) -> f32[N, 3] {
  y = mul(x, 2.0)
  z: f32[N, 3] = torch.aten.special_log_ndtr(y) at "model.py":7
  w: f32[N, 3] = torch.aten.log1p(y) at "model.py":8
  s = add(z, w)
  return s
}
"""
BAD = {"x": np.array([[1.0, 2.0, 3.0], [1.0, -4.0, 2.0]], np.float32)}


def program():
    return opstep.loads(TEXT, "text.opg", fallback="torch")


def test_a_nan_is_born_in_it():
    found = str(opstep.hunt(program(), "main", BAD))
    assert "NaN born in torch.aten.log1p w at main, model.py:8" in found
    assert "1 of 6 elements of w was born here" in found


def test_a_nan_goes_through_it():
    x = BAD["x"].copy()
    x[1, 1] = np.nan
    found = str(opstep.hunt(program(), "main", {"x": x}))
    assert "input x has 1 of 6 elements NaN" in found
    assert "torch.aten.log1p w" in found


def test_it_fails_in_the_hunt_of_what_goes_through_it():
    """When a hunt runs the op again over other operands, it may not be defined there."""
    text = (
        "graph main(x: f32[3, 3]) -> f32[3, 3] {\n"
        "  y: f32[3, 3] = torch.aten.linalg_inv(x)\n  z = mul(y, 2.0)\n  return z\n}\n"
    )
    x = np.eye(3, dtype=np.float32)
    x[0, 1] = np.nan
    found = str(opstep.hunt(opstep.loads(text, fallback="torch"), "main", {"x": x}))
    assert "input x has 1 of 9 elements NaN" in found


def test_the_debugger_steps_over_it_and_back(tmp_path, capsys):
    (tmp_path / "text.opg").write_text(TEXT)
    np.save(tmp_path / "x.npy", BAD["x"])
    words = ["debug", str(tmp_path / "text.opg"), "-i", f"x={tmp_path / 'x.npy'}", "--batch"]
    commands = ["break torch.aten.log1p", "run", "info op", "next", "print w[0]", "reverse-next"]
    words += [w for c in [*commands, "print y[0]", "step"] for w in ("-ex", c)]
    assert main([*words, "--fallback", "torch"]) == 0
    said = capsys.readouterr().out
    assert "torch.aten.log1p" in said
    assert "1.0986" in said  # log1p(2)


def test_an_editor_steps_over_it_if_it_is_told(tmp_path):
    path = tmp_path / "text.opg"
    path.write_text(TEXT.replace("N", "2"))
    with Client.over_socket() as client, pytest.raises(Refused, match="lets PyTorch run it"):
        client.start(path, inputs="ones")
    with Client.over_socket() as client:
        client.start(path, inputs="ones", fallback="torch", stopOnEntry=True)
        client.expect_stop("entry")
        for command, line in (("next", 3), ("next", 4), ("stepBack", 3), ("next", 4), ("next", 5)):
            client.go(command)
            assert client.where()[1] == line


def test_recordings_plans_and_diffs(tmp_path):
    path = tmp_path / "runs.db"
    with opstep.Recording(workspace=path) as recording:
        program().run("main", {"x": np.ones((2, 3), np.float32)}, recording=recording)
    with opstep.Workspace(path) as workspace:
        assert workspace.rerun("last", fallback="torch").identical
        with pytest.raises(opstep.OpstepError, match="is an op of PyTorch"):
            workspace.rerun("last")
    assert "torch.aten.log1p(y)" in str(opstep.loads(TEXT).plan("main", symbols={"N": 4}))
    assert diff(program(), program(), inputs=BAD).same


def test_a_gradient_is_refused_at_its_line():
    text = (
        "graph main(x: f32[3]) -> f32[] {\n  y: f32[3] = torch.aten.log1p(x)\n"
        "  z = sum(y)\n  return z\n}\n"
    )
    with pytest.raises(opstep.OpstepError) as caught:
        opstep.loads(text, "text.opg").with_grad("main", ["x"])
    assert "text.opg:2" in str(caught.value)
    assert "torch.aten.log1p has no gradient" in str(caught.value)


def test_a_gradient_beside_it_is_taken():
    text = (
        "graph main(x: f32[N]) -> f32[], f32[N] {\n  y: f32[N] = torch.aten.log1p(x)\n"
        "  q = square(x)\n  z = sum(q)\n  return z, y\n}\n"
    )
    found = opstep.loads(text, fallback="torch").with_grad("main", ["x"])
    *_, gradient = found.run("main_grad", {"x": np.array([1.0, 3.0], np.float32)}).values()
    assert gradient.tolist() == [2.0, 6.0]


# --- what is not run ---


def run_line(statement: str, **options) -> str:
    """What is said of a program of one statement."""
    text = f"graph main(x: f32[2, 3]) -> f32[2, 3] {{\n  {statement}\n  return y\n}}\n"
    with pytest.raises(opstep.OpstepError) as caught:
        opstep.loads(text, "text.opg", **options).run("main", {"x": np.ones((2, 3), np.float32)})
    assert "text.opg:2" in str(caught.value)
    return str(caught.value)


def test_nothing_is_run_unasked():
    said = run_line('y: f32[2, 3] = torch.fallbacklib.bump(x, factor=1.0, mode="unasked")')
    assert "torch.fallbacklib.bump is an op of PyTorch" in said
    assert "fallback='torch' lets PyTorch run it" in said
    assert "unasked" not in calls


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("y: f32[2, 3] = torch.nolib.op(x)", "nothing has registered nolib"),
        ("y: f32[2, 3] = torch.fallbacklib.bumb(x)", "did you mean bump"),
        ("y: f32[2, 3] = torch.fallbacklib.bump(x, faktor=1.0)", "has no argument faktor"),
        ("y: f32[2, 3] = torch.fallbacklib.bump(x)", "does not take these arguments"),
        ("y: f32[2, 3] = torch.fallbacklib.bump(x, x, factor=1.0)", "does not take these"),
        ("y: f32[2, 3] = torch.fallbacklib.fails(x)", "not today"),
        ("y: f32[2, 3] = torch.fallbacklib.drawn(x)", "draws random numbers"),
        ("y: f32[2, 3] = torch.aten.t(x)", "gives f32[3, 2]; the text says f32[2, 3]"),
        ("y: f32[2, 3] = torch.aten.add_.Tensor(x, x)", "gives the tensor that it changes"),
        ('y: f32[2, 3] = torch.aten.save(x, filename="f")', "PyTorch knows no op torch.aten.save"),
        ('y: f32[2, 3] = torch.aten.from_file(x, filename="f", size=6)', "takes no tensor"),
        ("y: f32[2, 3] = torch.load_library.x(x)", "nothing has registered load_library"),
        ("y: f32[2, 3] = torch.aten.__class__(x)", "PyTorch knows no op"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["async", "debug"])
def test_what_is_wrong_is_said_at_the_statement(statement, said, mode):
    assert said in run_line(statement, fallback="torch")


def test_a_file_imports_nothing(tmp_path, monkeypatch, capsys):
    """Neither the text nor an exported model brings in code; the user names what is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("ownlib.py").write_text(LIBRARY)
    subprocess.run([sys.executable, "-c", EXPORT], check=True)

    def said(*words: str) -> tuple[int, str]:
        code = main(["run", *words, "-i", "example"])
        return code, capsys.readouterr().err

    for file in ("own.pt2", "own.opg"):
        code, text = said(file, "--fallback", "torch")
        assert code
        assert "nothing has registered ownlib" in text
        assert "--import MODULE" in text
    assert "ownlib" not in sys.modules
    for file in ("own.pt2", "own.opg"):
        assert said(file, "--fallback", "torch", "--import", "ownlib") == (0, "")
    assert "--fallback torch lets PyTorch run it" in said("own.opg", "--import", "ownlib")[1]
    assert "--import nolib: it cannot be imported" in said("own.opg", "--import", "nolib")[1]
    sys.modules.pop("ownlib")


LIBRARY = """
import torch

@torch.library.custom_op("ownlib::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)
"""
EXPORT = """
import torch, ownlib, opstep

class Model(torch.nn.Module):
    def forward(self, x):
        return ownlib.twice(x)

exported = torch.export.export(Model(), (torch.ones(3),))
torch.export.save(exported, "own.pt2")
opstep.from_torch(exported, fallback="torch").save("own.opg")
"""
WITHOUT = """
import sys
sys.modules["torch"] = None
import numpy as np, opstep
text = sys.argv[1]
program = opstep.loads(text, "text.opg", fallback="torch")
print(program.plan("main", symbols={"N": 2}).steps[1].op.name)
try:
    program.run("main", {"x": np.ones((2, 3), np.float32)})
except opstep.OpstepError as error:
    print(error)
"""


def test_without_pytorch_all_but_a_run_works():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, TEXT], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("torch.aten.special_log_ndtr\ntext.opg:3:18: error: ")
    assert "is an op of PyTorch, which cannot be imported" in done.stdout
    assert "pip install 'opstep[torch]'" in done.stdout


# --- torch.compile ---


@pytest.mark.parametrize("dynamic", [None, True])
def test_training_through_such_ops_is_that_of_eager_mode(compiled, dynamic, recwarn):
    model = Mixed()

    def step(run, x):
        model.zero_grad()
        results = run(x)
        sum(r.sum() for r in (*results[:3], *results[4:])).backward()
        return [r.detach() for r in results] + [p.grad.clone() for p in model.parameters()]

    fast = compiled(model, dynamic=dynamic, fallback=True)
    for count in (6, 5):
        x = torch.randn(count, 4)
        for a, b in zip(step(fast, x), step(model, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert not [w for w in recwarn if "PyTorch runs" in str(w.message)]


@pytest.mark.filterwarnings("ignore:PyTorch runs the inference itself:UserWarning")
@pytest.mark.parametrize("op", [logged, printed])
def test_an_op_that_has_an_effect_runs_though_nothing_reads_its_result(compiled, op):
    def function(x):
        op(x * 2, "seen")
        return x + x

    x = torch.ones(3)
    calls.clear()
    assert compiled(function, fallback=True)(x).tolist() == [2, 2, 2]
    assert calls == ["seen"]
    with pytest.raises(BackendCompilerFailed, match="there is no op for it"):
        compiled(function)(x)
    assert calls == ["seen"]


def test_a_hunt_in_training_names_the_op(compiled, recwarn):
    opstep.frontends.torch.findings.clear()
    fast = compiled(lambda x: bump(x, float("inf"), 0).relu(), fallback=True, hunt=True)
    with torch.no_grad():
        fast(torch.zeros(2, 3))
    (found,) = opstep.frontends.torch.findings
    opstep.frontends.torch.findings.clear()
    assert "NaN born in torch.fallbacklib.bump" in str(found)
