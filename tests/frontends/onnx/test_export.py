"""Programs as models of ONNX: functions, control flow, sizes, weights, names, refusals."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import opstep
from opstep.cli.main import main
from opstep.frontends.onnx.comparing import exact_session


def export(text: str, path: Path, graph: str | None = None, **options) -> onnx.ModelProto:
    """The model, which is checked."""
    opstep.to_onnx(opstep.loads(text, "model.opg"), path, graph, **options)
    return checked(path)


def checked(path: Path) -> onnx.ModelProto:
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(str(path), load_external_data=False)


def run(path: Path, **inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return exact_session(str(path), options).run(None, inputs)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


# --- graphs, names, places ------------------------------------------------------------------------

LAYERS = """
param first.w: f32[8, 4] = normal(std=0.5)
param second.w: f32[4, 8] = normal(std=0.5)

# A layer.
graph layer(x: f32[N, K], w: f32[M, K]) -> f32[N, M] {
  h = linear(x, w)
  y = relu(h) at "net.py":7 in "net.act"
  return y
}

graph head(x: f32[N, 4]) -> f32[N, 4] {
  y = layer(x, first.w)
  z = layer(y, second.w)
  return z
}

graph main(x: f32[N, 4]) -> f32[N, 4], f32[] {
  h = head(x)
  total = sum(h)
  return h, total
}
"""


def test_a_graph_is_one_function_for_all_sizes(path):
    model = export(LAYERS, path)
    functions = {f.name: f for f in model.functions}
    assert sorted(functions) == ["head", "layer"]
    assert [n.op_type for n in functions["head"].node] == ["layer", "layer"]
    assert list(functions["head"].input) == ["x", "first.w", "second.w"]
    assert functions["layer"].doc_string == "A layer."
    assert sorted(i.name for i in model.graph.initializer) == ["first.w", "second.w"]
    x = np.ones((3, 4), np.float32)
    program = opstep.loads(LAYERS)
    for got, want in zip(run(path, x=x), program.run("main", {"x": x}).outputs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_values_keep_names_sizes_and_places(path):
    model = export(LAYERS, path)
    assert [n.output[0] for n in model.graph.node] == ["h", "total"]
    assert [o.name for o in model.graph.output] == ["h", "total"]
    (x,) = model.graph.input
    dims = x.type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["N", 4]
    (relu,) = (n for f in model.functions for n in f.node if n.op_type == "Relu")
    places = {p.key: p.value for p in relu.metadata_props}
    assert places == {"opstep.line": "model.opg:8", "opstep.at": '"net.py":7 in "net.act"'}


def test_results_that_are_inputs_or_the_same_value(path):
    text = """graph main(x: f32[2]) -> f32[2], f32[2], f32[2] {
      y = neg(x)
      return y, y, x
    }
    """
    export(text, path)
    a, b, c = run(path, x=np.ones(2, np.float32))
    assert (a == -1).all() and (b == -1).all() and (c == 1).all()


def test_a_generic_graph_is_a_function_for_each_type(path):
    """Or one for all, where it says the same."""
    text = """
    graph doubled<T: number>(x: T[N]) -> T[N] {
      two = full(shape=[N], value=2, dtype=T)
      y = mul(x, two)
      return y
    }
    graph turned<T: number>(x: T[N]) -> T[N] {
      y = neg(x)
      return y
    }
    graph main(x: f32[N], i: i64[N]) -> f32[N], i64[N] {
      a = doubled(x)
      b = doubled(i)
      c = turned(a)
      d = turned(b)
      return c, d
    }
    """
    model = export(text, path)
    assert sorted(f.name for f in model.functions) == ["doubled", "doubled_2", "turned"]
    a, b = run(path, x=np.float32([1.5]), i=np.int64([3]))
    assert (a, b) == (-3, -6)
    export(text, path, "doubled", symbols={"T": "i32"})
    assert run(path, x=np.int32([4])) == [8]


def test_sizes_are_computed_where_they_are_symbols(path):
    text = """
    graph main(x: f32[N, L]) -> f32[2*L, N], f32[N, L + 1], i64[N, (L + 1)//2], f32[] {
      twice = tile(x, repeats=[1, 2])
      turned = transpose(twice)
      longer = pad(x, pads=[0, 0, 0, 1])
      places = iota(shape=[N, (L + 1)//2], axis=1)
      count = extent(of=[N, L], dtype=f32)
      return turned, longer, places, count
    }
    """
    export(text, path)
    program = opstep.loads(text)
    for shape in ((2, 3), (1, 1), (4, 0), (0, 5)):
        x = np.ones(shape, np.float32)
        for got, want in zip(run(path, x=x), program.run("main", {"x": x}).outputs, strict=True):
            np.testing.assert_array_equal(got, want)


SPREAD = """
graph main(x: f32[N, 2, H, 6], y: f32[N, 2, 5, 9]) -> f32[N, 2, 4, 4], f32[N, 2, 4, 4] {
  a = spread(x)
  b = spread(y)
  return a, b
}

graph spread(x: f32[N, 2, H, W]) -> f32[N, 2, 4, 4] {
  y = adaptive_avg_pool2d(x, output_size=[4, 4])
  return y
}
"""


def test_a_rule_that_needs_sizes(path):
    """Its function is written for those of each call; what nothing says has to be said."""
    with pytest.raises(opstep.OpstepError) as caught:
        export(SPREAD, path)
    assert "depends on the size H, which is a symbol here" in str(caught.value)
    assert "symbols={'H': 8}" in str(caught.value)
    model = export(SPREAD, path, symbols={"H": 7})
    assert {f.name for f in model.functions if f.domain == "opstep"} == {"spread", "spread_2"}
    rng = np.random.default_rng(0)
    given = {
        "x": rng.standard_normal((3, 2, 7, 6)).astype("f4"),
        "y": rng.standard_normal((3, 2, 5, 9)).astype("f4"),
    }
    wanted = opstep.loads(SPREAD).run("main", given).outputs
    for got, want in zip(run(path, **given), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_two_byte_floats_are_rounded_once(path):
    """bf16 is no type that ONNX Runtime computes in on a CPU, but the model is valid."""
    text = """
    graph main(x: bf16[N, 8]) -> bf16[N, 8] {
      y = layer_norm(x, shape=[8])
      z = log1p(y)
      w = softplus(z)
      return w
    }
    """
    export(text, path)
    export(text.replace("bf16", "f16"), path)
    x = np.linspace(0.1, 2, 16).reshape(2, 8).astype("f2")
    want = opstep.loads(text.replace("bf16", "f16")).run("main", {"x": x}).outputs[0]
    np.testing.assert_allclose(run(path, x=x)[0], want, rtol=2e-3)


# --- control flow, updates ------------------------------------------------------------------------

BRANCHES = """
param w: f32[2] = full(value=3.0)

graph main(x: f32[2], which: i32[], flag: bool[]) -> f32[2], f32[2], i32[] {
  a = cond(flag, x, then=scaled, else=same)
  b = switch(which, x, cases=[same, scaled, negated])
  last, turns = while(x, 0, test=small, body=grown)
  return a, b, turns
}

graph scaled(x: f32[2]) -> f32[2] {
  y = mul(x, w)
  return y
}

graph same(x: f32[2]) -> f32[2] { return x }

graph negated(x: f32[2]) -> f32[2] {
  y = neg(x)
  return y
}

graph small(x: f32[2], turns: i32[]) -> bool[] {
  top = max(x)
  more = less(top, 100.0)
  return more
}

graph grown(x: f32[2], turns: i32[]) -> f32[2], i32[] {
  y = scaled(x)
  next = add(turns, 1)
  return y, next
}
"""


def test_control_flow(path):
    export(BRANCHES, path)
    program = opstep.loads(BRANCHES)
    for which in range(3):
        for flag in (True, False):
            x = np.float32([1, 2 + which])
            given = {"x": x, "which": np.int32(which), "flag": np.bool_(flag)}
            wanted = program.run("main", given).outputs
            given = {n: np.asarray(a) for n, a in given.items()}
            for got, want in zip(run(path, **given), wanted, strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("which", [-1, 3])
def test_a_case_that_there_is_not_ends_the_run(path, which):
    export(BRANCHES, path)
    with pytest.raises(Exception, match="out of data bounds"):
        run(path, x=np.ones(2, "f4"), which=np.asarray(which, "i4"), flag=np.asarray(True))


COUNTER = """
param w: f32[2] = ones()
state steps: i32[] = 0

graph main(x: f32[2]) -> f32[2], i32[] {
  before = step(x)
  after = step(before)
  done = cond(true_now, x, then=step, else=kept)
  y = mul(done, w)
  return y, steps
}

state true_now: bool[] = true

graph step(x: f32[2]) -> f32[2] {
  y = mul(x, w)
  more = add(w, x)
  w <- more
  next = add(steps, 1)
  steps <- next
  return y
}

graph kept(x: f32[2]) -> f32[2] { return x }
"""


def test_updates_become_results(path):
    """Each run is given what the last one gave, as the program keeps it itself."""
    model = export(COUNTER, path, updates=True)
    assert [i.name for i in model.graph.input] == ["x", "steps", "w"]
    program = opstep.loads(COUNTER)
    states: dict[str, np.ndarray] = {}
    for turn in range(3):
        x = np.float32([turn, 1])
        y, count, steps, w = run(path, x=x, **states)
        want = program.run("main", {"x": x}).outputs
        np.testing.assert_array_equal(y, want[0])
        np.testing.assert_array_equal(count, want[1])
        states = {"w": w, "steps": steps}
        for name, value in states.items():
            np.testing.assert_array_equal(value, program.params[name])


def test_a_step_of_training(path):
    """Gradients and updates of an optimizer are ops as others."""
    text = """
    param w: f32[3, 4] = normal(std=0.5)
    param b: f32[3] = zeros()
    graph loss(x: f32[N, 4], label: i32[N]) -> f32[] {
      y = linear(x, w, b)
      h = gelu(y)
      l = softmax_cross_entropy(h, label)
      return l
    }
    """
    program = opstep.loads(text).with_optimizer("loss", "adamw", lr=0.01)
    opstep.to_onnx(program, path, "loss_step", updates=True, drop_asserts=True)
    names = [o.name for o in checked(path).graph.output]
    x = np.random.default_rng(1).standard_normal((5, 4)).astype("f4")
    given = {"x": x, "label": np.int32([0, 1, 2, 0, 1])}
    found = dict(zip(names, run(path, **given), strict=True))
    outputs = program.run("loss_step", given).outputs
    np.testing.assert_allclose(found[names[0]], outputs[0], rtol=1e-5)
    for name in ("w", "b"):
        np.testing.assert_allclose(
            found[f"{name}/next"], program.params[name], rtol=1e-5, atol=1e-6
        )


# --- refusals -------------------------------------------------------------------------------------


def test_all_that_onnx_cannot_say_is_told_at_once(path):
    text = """state steps: i32[] = 0
graph main(x: f32[N, N], t: i64[]) -> f32[N, N] {
  noise = normal(t, shape=[N, N], seed=1)
  y = add(x, noise)
  l = cholesky(y)
  m = inner(l)
  other = cholesky(m)
  next = add(steps, 1)
  steps <- next
  size = max(other)
  fine = less(size, 10.0)
  assert fine
  return other
}

graph inner(x: f32[N, N]) -> f32[N, N] {
  y = lgamma(x)
  return y
}
"""
    with pytest.raises(opstep.OpstepError) as caught:
        export(text, path)
    found = [(d.where(), d.message) for d in caught.value.diagnostics]
    assert [w for w, _ in found] == [
        f"model.opg:{p}" for p in ("3:11", "5:7", "9:3", "12:3", "17:7")
    ]
    assert "(2 times)" in found[1][1]
    assert not path.exists()


def test_an_op_of_pytorch_is_refused(path):
    text = """graph main(x: f32[4, 4]) -> f32[4, 4] {
  y: f32[4, 4] = torch.aten.linalg_inv(x)
  return y
}
"""
    with pytest.raises(opstep.OpstepError, match=r"model\.opg:2:18: .*cannot be exported"):
        export(text, path)


def test_a_graph_that_calls_itself_is_refused(path):
    text = """graph main(x: f32[]) -> f32[] {
  half = mul(x, 0.5)
  small = less(half, 1.0)
  y = cond(small, half, then=same, else=main)
  return y
}
graph same(x: f32[]) -> f32[] { return x }
"""
    with pytest.raises(opstep.OpstepError, match=r"model\.opg:4:7: .*calls itself"):
        export(text, path)


# --- files ----------------------------------------------------------------------------------------


def test_weights_beside_the_model(tmp_path):
    text = """
    param big: f32[64, 64] = normal()
    param half: bf16[32, 32] = normal()
    param small: f32[2] = ones()
    graph main(x: f32[64]) -> f32[64], f32[32, 32], f32[2] {
      y = matmul(big, x)
      h = cast(half, dtype=f32)
      s = identity(small)
      return y, h, s
    }
    """
    program, path = opstep.loads(text), tmp_path / "model.onnx"
    written = opstep.to_onnx(program, path, external=True)
    assert [p.name for p in written] == ["model.onnx", "model.onnx.data"]
    outside = {i.name for i in checked(path).graph.initializer if i.external_data}
    assert outside == {"big", "half"}
    x = np.ones(64, np.float32)
    for got, want in zip(run(path, x=x), program.run("main", {"x": x}).outputs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    program = opstep.loads(LAYERS)
    opstep.to_onnx(program, path)
    before = path.read_bytes()
    program.params["first.w"] = np.zeros((8, 4), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk is full")))
        with pytest.raises(opstep.OpstepError, match="cannot be written"):
            opstep.to_onnx(program, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    with pytest.raises(opstep.OpstepError, match="no folder"):
        opstep.to_onnx(program, tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(opstep.OpstepError, match=r"exported as \.onnx files"):
        opstep.to_onnx(program, tmp_path / "model.pb")


def test_the_command(tmp_path, capsys):
    source = tmp_path / "model.opg"
    source.write_text(LAYERS)
    assert main(["export", str(source)]) == 0
    assert re.search(r"2 params: wrote .*model\.onnx \(.* KiB\)", capsys.readouterr().err)
    checked(tmp_path / "model.onnx")
    assert main(["export", str(source)]) == 2
    assert "replace them with --force" in capsys.readouterr().err
    assert main(["export", str(source), "--force", "--external", "-g", "head", "-s", "N=3"]) == 0
    model = checked(tmp_path / "model.onnx")
    (tmp_path / "model.onnx.data").write_bytes(b"weights of the model that was there before")
    assert main(["export", str(source), "--force", "-g", "head", "-s", "N=3"]) == 0
    assert not (tmp_path / "model.onnx.data").exists()
    assert model.graph.name == "head"
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    source.write_text(COUNTER)
    assert main(["export", str(source), "-f"]) == 1
    error = capsys.readouterr().err
    assert "w <- …: a model of ONNX keeps nothing between runs" in error
    assert "hint: take the new values as further results: --updates" in error
    assert main(["export", str(source), "-f", "-s", "M=3"]) == 2
    assert "has no dimension M" in capsys.readouterr().err


# --- what goes wrong ------------------------------------------------------------------------------


def test_attention_wants_to_know_its_features(path):
    text = """graph main(q: f32[N, 2, L, D], k: f32[N, 2, L, D]) -> f32[N, 2, L, D] {
  y = scaled_dot_product_attention(q, k, k)
  return y
}"""
    with pytest.raises(opstep.OpstepError, match="depends on the size D"):
        export(text, path)
    export(text, path, symbols={"D": 8})


@pytest.mark.parametrize("size", [2**62, 10**23])
def test_sizes_that_no_tensor_has(path, size):
    text = "graph main(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  return y\n}"
    with pytest.raises(opstep.OpstepError, match="does not fit into any memory"):
        export(text, path, symbols={"N": size})
    assert not path.exists()


def test_a_model_that_cannot_be_written_keeps_its_weights(path):
    text = "param w: f32[512] = ones()\ngraph main() -> f32[512] {\n  y = relu(w)\n  return y\n}"
    export(text, path, external=True)
    beside = path.with_name("model.onnx.data")
    before = beside.read_bytes()
    path.unlink()
    path.mkdir()
    with pytest.raises(opstep.OpstepError, match="is a folder"):
        export(text.replace("ones", "zeros"), path, external=True)
    assert beside.read_bytes() == before
