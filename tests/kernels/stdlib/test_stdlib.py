"""The standard library's graphs beside PyTorch's scaled dot-product and multi-head attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.kernels.stdlib import library
from opstep.runtime.ir.graph import Apply, Module
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import dtype
from opstep.runtime.transforms.grad import grad

RNG = np.random.default_rng(0)
B, H, L, S, D, E = 2, 3, 5, 7, 4, 6
TOLERANCE = {"f64": 1e-13, "f32": 2e-6, "f16": 3e-3, "bf16": 3e-2}


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def call(graph: str, inputs: dict[str, np.ndarray], result: tuple[int, ...], t: str) -> Module:
    head = ", ".join(
        f"{k}: {'bool' if v.dtype == bool else t}{list(v.shape)}" for k, v in inputs.items()
    )
    statement = f"y = {graph}({', '.join(inputs)})"
    return parse(f"graph main({head}) -> {t}{list(result)} {{\n{statement}\nreturn y\n}}")


def compare(graph: str, peer, wrt: tuple[str, ...], **inputs: np.ndarray) -> None:
    """Each instance of a graph and its gradient, beside PyTorch in f64 on the same numbers."""
    for name, tolerance in TOLERANCE.items():
        t = dtype(name).numpy
        rounded = {k: v if v.dtype == bool else v.astype(t) for k, v in inputs.items()}
        compare_instance(graph, peer, wrt, rounded, name, tolerance)


def compare_instance(graph, peer, wrt, inputs, name: str, tolerance: float) -> None:
    torch = pytest.importorskip("torch")

    def exact(array):
        return torch.from_numpy(array if array.dtype == bool else array.astype("f8"))

    tensors = {k: exact(v).clone().requires_grad_(k in wrt) for k, v in inputs.items()}
    expected = peer(**tensors)
    module = call(graph, inputs, tuple(expected.shape), name)
    seed = data(*expected.shape).astype(dtype(name).numpy)
    made = grad(module, "main", wrt, seeded=True, name="gradient", library=library())
    both = opstep.Program(Module((*module.items, *made)))
    found = list(both.run("gradient", inputs | {"d_0": seed}).values())
    gradients = torch.autograd.grad(expected, [tensors[k] for k in wrt], exact(seed))
    for g, w in zip(found, (expected.detach(), *gradients), strict=True):
        assert g.dtype == dtype(name).numpy
        error = np.linalg.norm(g.astype("f8") - w.numpy()) / np.linalg.norm(w)
        assert error < tolerance, (name, error)
    (got,) = both.run("main", inputs).values()
    np.testing.assert_array_equal(got, found[0])


def heads() -> dict[str, np.ndarray]:
    return {"q": data(B, H, L, D), "k": data(B, H, S, D), "v": data(B, H, S, E)}


def dot_product(q, k, v, **options):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def test_attention():
    compare("attention", dot_product, ("q", "k", "v"), **heads())


def test_attention_masked():
    mask = np.where(RNG.random((L, S)) < 0.3, -np.inf, 0.0).astype("f4")
    mask[:, 2] = 0.0
    compare(
        "attention_masked",
        lambda q, k, v, mask: dot_product(q, k, v, attn_mask=mask),
        ("q", "k", "v"),
        **heads(),
        mask=mask,
    )


def test_attention_biased():
    compare(
        "attention_biased",
        lambda q, k, v, bias: dot_product(q, k, v, attn_mask=bias),
        ("q", "k", "v", "bias"),
        **heads(),
        bias=data(B, H, L, S),
    )


def test_attention_causal():
    compare(
        "attention_causal",
        lambda q, k, v: dot_product(q, k, v, is_causal=True),
        ("q", "k", "v"),
        **heads(),
    )


def test_attention_padded():
    keep = RNG.random((B, S)) < 0.6
    keep[:, 0] = True
    compare(
        "attention_padded",
        lambda q, k, v, keep: dot_product(q, k, v, attn_mask=keep[:, None, None]),
        ("q", "k", "v"),
        **heads(),
        keep=keep,
    )


def layer(m: int) -> dict[str, np.ndarray]:
    return {
        "w_in": data(3, H, D, m) * 0.3,
        "b_in": data(3, H, D),
        "w_out": data(m, H, D) * 0.3,
        "b_out": data(m),
    }


def torch_attention(x, w_in, b_in, w_out, b_out, causal=False):
    import torch

    m = x.shape[-1]
    mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if causal else None
    y, _ = torch.nn.functional.multi_head_attention_forward(
        *[x.transpose(0, 1)] * 3,
        embed_dim_to_check=m,
        num_heads=H,
        in_proj_weight=w_in.reshape(-1, m),
        in_proj_bias=b_in.reshape(-1),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=w_out.reshape(m, -1),
        out_proj_bias=b_out,
        attn_mask=mask,
        is_causal=causal,
        need_weights=False,
    )
    return y.transpose(0, 1)


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal):
    compare(
        "multi_head_attention_causal" if causal else "multi_head_attention",
        lambda **given: torch_attention(**given, causal=causal),
        ("x", "w_in", "b_in", "w_out", "b_out"),
        x=data(B, L, H * D),
        **layer(H * D),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_transformer_block(causal):
    m, hidden = H * D, 20

    def peer(x, n1s, n1b, w_in, b_in, w_out, b_out, n2s, n2b, w1, b1, w2, b2):
        import torch

        F = torch.nn.functional
        n = F.layer_norm(x, [m], n1s, n1b)
        x = x + torch_attention(n, w_in, b_in, w_out, b_out, causal)
        n = F.layer_norm(x, [m], n2s, n2b)
        return x + F.linear(F.gelu(F.linear(n, w1, b1)), w2, b2)

    compare(
        "transformer_block_causal" if causal else "transformer_block",
        peer,
        ("x", "n1s", "w_in", "w2"),
        x=data(B, L, m),
        n1s=data(m),
        n1b=data(m),
        **layer(m),
        n2s=data(m),
        n2b=data(m),
        w1=data(hidden, m) * 0.3,
        b1=data(hidden),
        w2=data(m, hidden) * 0.3,
        b2=data(m),
    )


SIZES = {"B": 2, "H": 3, "L": 4, "S": 5, "D": 2, "E": 3, "M": 6, "K": 5, "O": 4}
GRAPHS = {name: graph for module in library() for name, graph in module.graphs.items()}


def names_in(graph) -> set[str]:
    """All names in a graph, and in those that it calls."""
    applies = [s for s in graph.body if isinstance(s, Apply)]
    bindings = [*graph.inputs, *(b for s in applies for b in s.results)]
    names = {b.name.text for b in bindings} | {"T", *SIZES}
    return names.union(
        *(names_in(GRAPHS[s.callee.text]) for s in applies if s.callee.text in GRAPHS)
    )


def beside(name: str, declared: str = "") -> tuple[opstep.Program, dict[str, np.ndarray]]:
    """A program that calls a graph of the library, beside what else it declares, and inputs."""
    rng, inputs = np.random.default_rng(0), {}
    for k, binding in enumerate(GRAPHS[name].inputs):
        shape = [SIZES.get(str(d), d) for d in binding.type.shape]
        is_bool = binding.type.dtype.kind == "b"
        array = rng.standard_normal(shape).astype("f4")
        inputs[f"given_{k}"] = array > -1 if is_bool else array
    results = [f"found_{k}" for k in range(len(GRAPHS[name].results))]
    head = ", ".join(
        f"{k}: {'bool' if v.dtype == bool else 'f32'}{list(v.shape)}" for k, v in inputs.items()
    )
    text = f"""
    {declared}
    graph main({head}) -> f32[] {{
      {", ".join(results)} = {name}({", ".join(inputs)})
      loss_0 = full(shape=[], value=0.0, dtype=f32)
    """
    for k, result in enumerate(results):
        text += f"square_{k} = square({result})\npart_{k} = sum(square_{k})\n"
        text += f"loss_{k + 1} = add(loss_{k}, part_{k})\n"
    return opstep.loads(text + f"return loss_{len(results)}\n}}"), inputs


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_that_a_program_declares_changes_the_library(name):
    """The same bits, and gradients, where all its names are those of params and graphs."""
    declared = "mesh B: 1, H: 1\n"
    for own in sorted(names_in(GRAPHS[name]) | GRAPHS.keys()):
        declared += f"param {own}: i32[3] = zeros()\n"
    for other in GRAPHS.keys() - {name}:
        declared += f"graph {other}(xx: f32[2]) -> f32[2] {{\nyy = neg(xx)\nreturn yy\n}}\n"
    found = []
    for program, inputs in (beside(name), beside(name, declared)):
        wrt = [k for k, v in inputs.items() if v.dtype != bool]
        made = grad(program.module, "main", wrt, name="gradient", library=library())
        both = opstep.Program(Module((*program.module.items, *made)))
        found.append([v.tobytes() for v in both.run("gradient", inputs).values()])
    assert found[0] == found[1]


def test_the_library_is_in_canonical_form():
    for module in library():
        assert module.source is not None
        assert print_module(module) == Path(module.source.path).read_text(encoding="utf-8")


def test_the_library_is_parsed_once():
    assert library() is library()
