"""``opstep diff model.onnx --against``: a model of ONNX beside ONNX Runtime, or beside the PyTorch
model that it was exported from.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from opstep.cli.against import UNFIT, inputs_of, show_found, unfit
from opstep.cli.common import watch_compiler

AGAINST = "onnxruntime"


def is_onnx(files: tuple[str, ...], against: str | None) -> bool:
    """Whether a comparison is one of a model of ONNX with something else than our runs."""
    return against == AGAINST or (bool(against) and files[0].lower().endswith(".onnx"))


def diff_onnx(files: tuple[str, ...], options: dict[str, Any]) -> int:
    """What ``diff`` does with a model of ONNX and ``--against``."""
    from opstep.runtime.ir.errors import InputError

    file, *more = files
    against = options["against"]
    if more or not file.lower().endswith(".onnx"):
        raise InputError(f"--against {against} takes one ONNX model")
    given = unfit(options, *UNFIT, "dtype")
    if against != AGAINST and options["workspace"] is not None:
        given.append("workspace")
    if given:
        raise InputError(f"--{given[0]} does not fit --against {against}")
    return _diff_runtime(file, options) if against == AGAINST else _diff_exported(file, options)


def _diff_runtime(file: str, options: dict[str, Any]) -> int:
    from opstep.differing.comparison import settings
    from opstep.frontends.onnx.comparing import Compared
    from opstep.trace.recording import Recording

    model = Compared(file)
    inputs = inputs_of(model.program, options, {}, ["random"])
    path = options["workspace"]
    recording = None if path is None else Recording(workspace=path)
    with recording or nullcontext(), watch_compiler():
        found = model.compare(
            inputs, settings(options["a"]), options["rtol"] or None, recording=recording
        )
    return show_found(found, options, recording)


def _diff_exported(file: str, options: dict[str, Any]) -> int:
    from opstep.cli.options import import_modules
    from opstep.differing.comparison import settings
    from opstep.frontends.onnx.importing import check_installed as check_onnx
    from opstep.frontends.torch.importing import check_installed as check_torch

    check_onnx()
    check_torch()
    from opstep.frontends.torch.onnx_exports import Exported

    path, name = _model(options["against"])
    import_modules(options["imports"])
    opened = Exported(file)
    if name:
        from opstep.frontends.scripts.named import named

        inputs = inputs_of(opened.program, options, {}, ["random"])
        found = opened.traced(opened.module(named(path, name), options["against"]), inputs)
    else:
        found = opened.traced(path, {})
        inputs = inputs_of(opened.program, options, opened.examples(found), ["random"])
    with watch_compiler():
        compared = opened.compare(found, inputs, settings(options["a"]), options["rtol"] or None)
    return show_found(compared, options)


def _model(against: str) -> tuple[str, str]:
    """A file and what it calls the model; "" where it is a file of one."""
    from opstep.runtime.ir.errors import InputError

    path, _, name = against.rpartition(":")
    if path.endswith(".py") and name.isidentifier():
        return path, name
    if against.endswith(".pt2"):
        return against, ""
    hint = "there are: onnxruntime, FILE.pt2, FILE.py:NAME of a module or of what makes it"
    if against.endswith(".py"):
        hint = f"name the model in it: --against {against}:NAME"
    raise InputError(f"an ONNX model cannot be compared with {against!r}", hint=hint)
