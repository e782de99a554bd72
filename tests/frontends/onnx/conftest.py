"""What tests of models in ONNX's format share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def make_model(
    nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any],
    weights: Mapping[str, np.ndarray] | None = None, opset: int = 17, **more: Any,
) -> Any:  # fmt: skip
    """`inputs` and `outputs`: element type and shape by name."""
    from onnx import helper, numpy_helper

    def declared(values: Mapping[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in values.items()]

    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", declared(inputs), declared(outputs), tensors)
    versions = [helper.make_opsetid("", opset), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=versions, ir_version=8, **more)


@pytest.fixture
def model() -> Callable[..., Any]:
    return make_model


@pytest.fixture
def agrees() -> Callable[..., Any]:
    """Compares all results with ONNX Runtime's; gives the program."""

    def compare(model: Any, inputs: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> Any:
        import opstep
        from opstep.frontends.onnx.comparing import exact_session

        program = opstep.from_onnx(model)
        main = program.graph("main")
        content = str(model) if isinstance(model, Path) else model.SerializeToString()
        session = exact_session(content)
        wanted = session.run(None, dict(inputs))
        names = [b.name.text for b in main.inputs]
        found = program.run("main", dict(zip(names, inputs.values(), strict=True)))
        for value, expected in zip(main.body[-1].values, wanted, strict=True):
            got = found[value.text]
            assert got.dtype == expected.dtype
            if got.dtype.kind == "f":
                largest = float(np.abs(expected).max(initial=1e-30))
                np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * largest)
            else:
                np.testing.assert_array_equal(got, expected)
        return program

    return compare
