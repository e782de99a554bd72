"""The model of a graph: its nodes, its functions, the types of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper

from opstep.api.inputs import bound_types
from opstep.api.sources import check_symbols
from opstep.frontends.onnx.export_functions import Functions
from opstep.frontends.onnx.export_nodes import GRAPH_DOMAIN, IR, OP_DOMAIN, OPSET, value_info
from opstep.frontends.onnx.export_writer import Writer
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.effects import effects_of
from opstep.version import __version__

if TYPE_CHECKING:
    from opstep.api.program import Program


def exported(
    program: Program, graph: str | None, symbols: Mapping[str, Any], *, updates: bool,
    drop_asserts: bool,
) -> tuple[onnx.ModelProto, tuple[str, ...]]:  # fmt: skip
    """The model without its weights, and their names. Raises `OpstepError` with all that ONNX
    cannot say.
    """
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
        results.append(value_info(writer.next(state), t))
    made = helper.make_graph(
        [n.proto() for n in writer.body.nodes], name, inputs, results,
        doc_string="\n".join(found.comments.above) or None,
        value_info=_values(writer, {*outputs, *(r.name for r in results)}),
    )  # fmt: skip
    used = {domain for domain, _ in functions.protos}
    opsets = [helper.make_opsetid("", OPSET)]
    opsets += [helper.make_opsetid(d, 1) for d in (GRAPH_DOMAIN, OP_DOMAIN) if d in used]
    model = helper.make_model(
        made, opset_imports=opsets, functions=list(functions.protos.values()), ir_version=IR,
        producer_name="opstep", producer_version=__version__,
    )  # fmt: skip
    return model, effects.touches


def _values(writer: Writer, outputs: set[str]) -> list[onnx.ValueInfoProto]:
    """The types of what the statements give."""
    made = {o for n in writer.body.nodes for o in n.outputs}
    return [value_info(v.name, v.type) for v in writer.values.values() if v.name in made - outputs]
