"""Each op's own test graphs as models of ONNX: checked, and run by ONNX Runtime against the oracle.

The graphs of an op are functions of one model, which calls each of them once.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from cases import Case, cases, inputs, program
from values import compare

import opstep
from opstep.frontends.onnx.comparing import exact_session
from opstep.runtime.ir.op import OPS

# What differs, by design of ONNX or of its runtime. The op is exported all the same.
NANS = "ONNX does not say what an extreme of NaNs is"
RANGE = "what a cast makes of a number out of range is not defined"
OUTSIDE = "an index that does not exist ends the run"
LIMITS = "ONNX Runtime refuses it"
F32 = "ONNX Runtime computes where it samples in f32"
DIFFERENT = {
    **dict.fromkeys((
        "adaptive_max_pool2d-with_nans", "adaptive_max_pool3d-with_nans", "argmax-special",
        "argmax-special_columns", "argmin-special", "argmin-special_columns", "max-special",
        "max-special_columns", "max_pool1d-with_nans", "max_pool1d_with_indices-with_nans",
        "max_pool3d-with_nans", "max_pool3d_with_indices-with_nans", "min-special",
        "min-special_columns", "prelu-special",
    ), NANS),
    **dict.fromkeys((
        "cast-to_u8", "cast-special_to_i64", "cast-special_to_i32", "cast-special_to_i8",
        "cast-special_to_u8",
    ), RANGE),
    **dict.fromkeys((
        "index-of_nothing", "index_put-middle", "index_put_add-middle", "scatter_add-many",
        "scatter_reduce-add_long", "scatter_reduce-mean_long",
    ), OUTSIDE),
    **dict.fromkeys((
        "max_pool2d-padding_alone", "max_pool2d_with_indices-padding_alone",
        "max_pool3d-padding_alone", "max_pool3d_with_indices-padding_alone",
        "softmax_cross_entropy-no_positions", "cast-to_bf16", "cast-special_to_bf16",
    ), LIMITS),
    **dict.fromkeys(("grid_sample2d-far", "upsample1d-by_five_thirds"), F32),
}  # fmt: skip
OF_RANKS = {name for name, op in OPS.items() if op.traits.collective or op.traits.by_rank}
NO_WORDS = OF_RANKS - {"extent"} | {
    "bitcast", "cholesky", "digamma", "erfinv", "grid_sample2d_grad", "lgamma", "solve_triangular",
    "trigamma",
}  # fmt: skip
STEPPED = {"bernoulli", "dropout", "normal", "randint", "uniform"}  # with a step; else constants


def said(case: Case) -> bool:
    """Whether ONNX has words for a graph."""
    return case.file not in NO_WORDS and case.id not in {f"{name}-stepped" for name in STEPPED}


FILES = sorted({c.file for c in cases() if said(c)})


def dtype_of(case: Case) -> str:
    return "f32" if "f32" in case.dtypes else case.dtypes[0]


def together(found: list[Case]) -> opstep.Program:
    """A program whose graph `all_of_them` calls every one."""
    texts, takes, gives, calls, names = [], [], [], [], []
    for case in found:
        dtype, graph = dtype_of(case), case.graph.name.text
        typed = program(case.id, dtype).graphs[graph]
        texts.append(case.text(dtype))
        mine = [(f"{graph}__{b.name.text}", b) for b in typed.inputs]
        takes += [f"{name}: {b.type}" for name, b in mine]
        results = [f"{graph}__y{k}" for k in range(len(typed.results))]
        gives += map(str, typed.results)
        names += results
        calls.append(f"{', '.join(results)} = {graph}({', '.join(n for n, _ in mine)})")
    body = "\n".join(f"  {line}" for line in [*calls, f"return {', '.join(names)}"])
    head = f"graph all_of_them({', '.join(takes)}) -> {', '.join(gives)} {{\n{body}\n}}\n"
    return opstep.loads("\n".join([*texts, head]))


def given_to(case) -> dict[str, np.ndarray]:
    """Bytes that are multiplied are half as large as others test them: where a processor has no
    VNNI, ONNX Runtime adds two products in 16 bits, and saturates.
    """
    found = inputs(case, dtype_of(case))
    if not case.file.endswith("_integer"):
        return found
    return {k: np.asarray(a // 2) if a.dtype.itemsize == 1 else a for k, a in found.items()}


@pytest.mark.parametrize("file", FILES)
def test_same_numbers(file, tmp_path):
    found = [c for c in cases() if c.file == file and said(c) and c.id not in DIFFERENT]
    (path,) = opstep.to_onnx(together(found), tmp_path / "model.onnx", "all_of_them")
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = exact_session(path, options)
    given = {
        f"{case.graph.name.text}__{name}": array
        for case in found
        for name, array in given_to(case).items()
    }
    results = iter(session.run(None, given))
    for case in found:
        dtype, graph = dtype_of(case), case.graph.name.text
        made = program(case.id, dtype)
        expected = oracle.evaluate(made.verified, graph, given_to(case))
        for want, t in zip(expected, made.graphs[graph].results, strict=True):
            got = np.asarray(next(results))
            assert (got.shape, got.dtype) == (want.shape, t.dtype.numpy), case.id
            compare(got, want, case.tolerance(t.dtype) if t.dtype.is_float else 0)


@pytest.mark.parametrize("case_id", [c.id for c in cases() if c.id in DIFFERENT])
def test_differs_in_the_runtime_alone(case_id, tmp_path):
    """The model is what ONNX calls valid, with the shapes that it infers."""
    (case,) = (c for c in cases() if c.id == case_id)
    made = program(case_id, dtype_of(case))
    (path,) = opstep.to_onnx(made, tmp_path / "model.onnx", case.graph.name.text)
    onnx.checker.check_model(path, full_check=True)


def test_every_other_op_is_refused(tmp_path):
    """At its line, with what it is; nothing is written."""
    refused = {c.file for c in cases() if not said(c)}
    assert refused == NO_WORDS | STEPPED
    for case in (c for c in cases() if not said(c)):
        path = tmp_path / "model.onnx"
        with pytest.raises(opstep.OpstepError) as caught:
            opstep.to_onnx(program(case.id, dtype_of(case)), path, case.graph.name.text)
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.message.startswith(f"{case.file} cannot be exported: ")
        assert diagnostic.where().startswith(f"{case.file}.opg:")
        assert not path.exists()


def test_every_op_is_tested():
    foreign_and_control = {name for name, op in OPS.items() if op.traits.host or op.traits.foreign}
    assert set(OPS) - foreign_and_control == {c.file for c in cases()}
