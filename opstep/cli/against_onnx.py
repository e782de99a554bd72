"""``opstep diff --against onnxruntime``: a model of ONNX as it runs here and there."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from opstep.cli.against import UNFIT, kept, record, show
from opstep.cli.common import OK, PROGRAM, UNRECORDED, emit_json, watch_compiler

AGAINST = "onnxruntime"


def diff_onnx(files: tuple[str, ...], options: dict[str, Any]) -> int:
    """What ``diff`` does with ``--against onnxruntime``."""
    from opstep.api.sources import check_symbols, gather, parse_symbols
    from opstep.differing.comparison import settings
    from opstep.frontends.onnx.comparing import Compared
    from opstep.runtime.ir.errors import InputError
    from opstep.trace.recording import Recording

    file, *more = files
    if more or not file.lower().endswith(".onnx"):
        raise InputError("--against onnxruntime takes one ONNX model")
    given = [n for n in (*UNFIT, "dtype") if options[n] not in (None, 0.0)]
    if options["steps"] != 1:
        given.append("steps")
    if given:
        raise InputError(f"--{given[0]} does not fit --against onnxruntime")
    model = Compared(file)
    graph = model.program.graph("main")
    symbols = parse_symbols(options["symbols"])
    check_symbols(graph, symbols)
    words = options["inputs"] or ["random"]
    inputs = gather(model.program, graph, words, symbols, options["seed"])
    path = options["workspace"]
    recording = None if path is None else Recording(workspace=path)
    with recording or nullcontext(), watch_compiler():
        found = model.compare(
            inputs, settings(options["a"]), options["rtol"] or None, recording=recording
        )
    if options["as_json"]:
        emit_json(record(found))
    else:
        show(found)
    if recording and kept(recording, found):
        return UNRECORDED
    return OK if found.same else PROGRAM
