"""A program as a file of ONNX: ``program.to_onnx(path)``, ``opstep export``.

`nodes` writes nodes, `functions` graphs and ops as functions, `export_control` control flow, by the
`export_rules` for single ops.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper, numpy_helper

from opstep.api.inputs import bound_types
from opstep.api.sources import check_symbols
from opstep.frontends.onnx.functions import GRAPHS, OPS, Functions, Writer
from opstep.frontends.onnx.nodes import IR, OPSET, value_info
from opstep.frontends.onnx.types import NUMBERS
from opstep.runtime import arrays
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Wording
from opstep.runtime.transforms.builder import Var
from opstep.version import __version__

if TYPE_CHECKING:
    from opstep.api.program import Program

INSIDE = 64 << 20  # bytes of weights that stay in the model's file; more are put beside it
_SMALL = 1 << 10  # bytes of a tensor that is never put beside it
_ALIGNED = 1 << 12  # where tensors begin in the file of weights: they can be mapped


def save(
    program: Program, path: str | os.PathLike, graph: str | None, symbols: Mapping[str, Any], *,
    updates: bool, drop_asserts: bool, external: bool | None,
) -> list[Path]:  # fmt: skip
    """Writes the model, and its weights beside it where they are large; gives the paths."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(f"{target}: there is no folder {target.parent}")
    model, names = exported(program, graph, symbols, updates=updates, drop_asserts=drop_asserts)
    weights = {n: program.params[n] for n in names}
    if external is None:
        external = sum(a.nbytes for a in weights.values()) > INSIDE
    beside = target.with_name(f"{target.name}.data")
    apart = {n: a for n, a in weights.items() if external and a.nbytes >= _SMALL}
    at = 0
    for name, array in weights.items():
        if name not in apart:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
            continue
        at += -at % _ALIGNED
        tensor = onnx.TensorProto(name=name, dims=array.shape)
        tensor.data_type = NUMBERS[program.module.tensors[name].type.dtype]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", beside.name), ("offset", at), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(tensor)
        at += array.nbytes
    content = _serialised(model, target)
    if apart:
        arrays.replace_file(beside, lambda file: _write_aligned(file, apart))
    arrays.replace_file(target, lambda file: file.write(content))
    return [target, beside] if apart else [target]


def _serialised(model: onnx.ModelProto, target: Path) -> bytes:
    try:
        return model.SerializeToString(deterministic=True)
    except ValueError as error:  # protobuf's limit
        raise InputError(
            f"{target}: a file of ONNX holds less than 2 GiB: {error}",
            hint=Wording("put the weights beside it: ", Argument("external", True)),
        ) from None


def _write_aligned(file: Any, tensors: Mapping[str, Any]) -> None:
    at = 0
    for array in tensors.values():
        file.write(b"\0" * (-at % _ALIGNED))
        at += -at % _ALIGNED + array.nbytes
        file.write(array.data if array.dtype.kind != "V" else array.tobytes())


def exported(
    program: Program, graph: str | None, symbols: Mapping[str, Any], *, updates: bool,
    drop_asserts: bool,
) -> tuple[onnx.ModelProto, tuple[str, ...]]:  # fmt: skip
    """The model without its weights, and their names. Raises `OpstepError` that says all that ONNX cannot."""
    found = program.graph(graph)
    bound = bound_types(found, symbols)
    check_symbols(found, bound)
    functions = Functions(program.verified, updates, drop_asserts)
    name = found.name.text
    effects = effects_of([name], program.verified)
    writer = Writer(functions, program.verified.graphs[name], bound, effects.touches)
    outputs = writer.write()
    if functions.problems:
        raise OpstepError(functions.diagnostics())
    types = [t.bind(bound) for t in found.results]
    results = [value_info(o, t) for o, t in zip(outputs, types, strict=True)]
    inputs = [value_info(b.name.text, writer.type_of(b.name.text)) for b in found.inputs]
    for state in functions.effects([name])[1]:
        t = program.verified.tensors[state].type
        inputs.append(value_info(state, t))
        results.append(value_info(writer.given(writer.current[state], state), t))
    made = helper.make_graph(
        [n.proto() for n in writer.body.nodes], name, inputs, results,
        doc_string="\n".join(found.comments.above) or None,
        value_info=_values(writer, {*outputs, *(r.name for r in results)}),
    )  # fmt: skip
    used = {domain for domain, _ in functions.protos}
    opsets = [helper.make_opsetid("", OPSET)]
    opsets += [helper.make_opsetid(d, 1) for d in (GRAPHS, OPS) if d in used]
    model = helper.make_model(
        made, opset_imports=opsets, functions=list(functions.protos.values()), ir_version=IR,
        producer_name="opstep", producer_version=__version__,
    )  # fmt: skip
    return model, effects.touches


def _values(writer: Writer, outputs: set[str]) -> list[onnx.ValueInfoProto]:
    """The types of what the statements give."""
    made = {o for n in writer.body.nodes for o in n.outputs}
    return [
        value_info(v.name, v.type)
        for v in writer.values.values()
        if isinstance(v, Var) and v.name in made - outputs
    ]
