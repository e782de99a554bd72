"""From a PyTorch module, or an `ExportedProgram`, to a program."""

from __future__ import annotations

import io
import logging
import operator
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.proxy import TracerBase

from opstep.frontends.replacing import replaced
from opstep.frontends.torch.assembling import Translated, Translation
from opstep.frontends.torch.definitions import Definitions, without_definition
from opstep.frontends.torch.dims import Symbols
from opstep.frontends.torch.functional import replace_in_place
from opstep.frontends.torch.fused_attention import single_attention
from opstep.frontends.torch.in_place import lines_in_place
from opstep.frontends.torch.inlining import inline_regions
from opstep.frontends.torch.recurrent import whole_layers
from opstep.frontends.torch.refusals import check_args, check_tensors, refusal
from opstep.frontends.torch.rules import all_rules
from opstep.frontends.torch.sizes import symbol_names
from opstep.runtime.ir.errors import InputError

ON_NUMBERS = {getitem, *(getattr(operator, n) for n in ("add", "sub", "mul", "floordiv", "mod"))}


def translate_model(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any,
    fallback: bool = False,
) -> Translated:  # fmt: skip
    """`importing.translated`, for a module or an exported program."""
    if isinstance(model, ExportedProgram):
        return translate_exported(model, dynamic_shapes, "<exported>", fallback=fallback)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"a {type(model).__name__} is no PyTorch model")
    check_args(args, kwargs)
    exported = _exported(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
    path = f"<{type(model).__name__}>"
    return translate_exported(exported, dynamic_shapes, path, model, fallback)


def translate_exported(
    exported: ExportedProgram, dynamic_shapes: Any, path: str, model: Any = None,
    fallback: bool = False,
) -> Translated:  # fmt: skip
    """The program of an exported one, or of the module `model`; `path` stands in messages.
    `fallback`: ops for which even PyTorch's definition by others does not help are its own.
    """
    all_rules()
    # What was decomposed has no ops in place any more, whether the model had them or not.
    is_whole = exported.verifier.dialect == "TRAINING"
    signature = exported.graph_signature
    named = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    changing = lines_in_place(exported.graph_module, named) if is_whole else None
    found = _translate_exported(exported, dynamic_shapes, path, model, fallback)
    found.program.changed_in_place = changing
    return found


def _translate_exported(
    exported: ExportedProgram, dynamic_shapes: Any, path: str, model: Any, fallback: bool
) -> Translated:
    names = symbol_names(exported, dynamic_shapes, model)
    check_tensors(exported)
    inline_regions(exported)
    replace_in_place(exported)
    for old, new in single_attention(exported.graph).items():
        exported.graph_signature.replace_all_uses(old, new)
    if _is_functional(exported.graph):
        translation = Translation(exported, Symbols(names), model)
        if translation.is_complete:
            return translation.finished(path)
    lowered, kept = _decomposed(exported, {}), set()
    while True:
        definitions = Definitions(kept)
        translation = _attempt(lowered, names, model, definitions, fallback)
        replaced = set(definitions.table)
        blamed = translation.blamed(replaced) if fallback else set()
        if fallback and not translation.is_complete:
            blamed = blamed or replaced  # an older PyTorch does not tell what came of what
        if not blamed:
            return translation.finished(path, definitions)
        kept |= blamed


def _attempt(
    exported: ExportedProgram, names: dict[str, str], model: Any, definitions: Definitions,
    fallback: bool,
) -> Translation:  # fmt: skip
    """A translation with ops that we do not have replaced by their definitions."""
    leaves = without_definition(definitions.kept) if fallback else None
    translation = Translation(exported, Symbols(names), model, leaves)
    while definitions.add(translation.missing_targets()):
        exported = _decomposed(exported, definitions.table)
        translation = Translation(exported, Symbols(names), model, leaves)
    return translation


def retranslated(exported: ExportedProgram, path: str, fallback: bool = False) -> Translated:
    """The translation of a graph of ATen ops that was translated before, and changed."""
    leaves = (lambda op: True) if fallback else None
    return Translation(exported, Symbols(), leaves=leaves).finished(path)


def _is_functional(graph: fx.Graph) -> bool:
    """Whether no op changes its operands or calls a graph: then there may be nothing to decompose,
    which takes as long as the export.
    """
    return all(
        isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable
        for node in graph.nodes
        if node.op == "call_function" and node.target not in ON_NUMBERS
    )


def _decomposed(exported: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    """With the ops in the table replaced by others, and without any that change their operands."""
    try:
        with warnings.catch_warnings(), torch.no_grad(), whole_layers():
            warnings.simplefilter("ignore")
            return exported.run_decompositions(table)
    except Exception as error:
        raise refusal(error) from error


def _exported(model: Any, args: tuple, kwargs: dict[str, Any], dynamic_shapes) -> ExportedProgram:
    said = io.StringIO()  # by PyTorch, of what it could not finish, and by the model
    try:
        with (
            whole_stacks(), whole_layers(), warnings.catch_warnings(), redirect_stderr(said),
            _logged_to(said),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            exported = torch.export.export(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # of any class: what export and the model raise
        raise refusal(error) from error
    sys.stderr.write(said.getvalue())
    return exported


@contextmanager
def _logged_to(stream: io.StringIO) -> Iterator[None]:
    """PyTorch's log handlers hold the stderr of the time when they were made."""
    loggers = [logging.getLogger(n) for n in ("torch", *logging.root.manager.loggerDict)]
    handlers = {h for log in loggers if log.name.startswith("torch") for h in log.handlers}
    before = {h: h.setStream(stream) for h in handlers if type(h) is logging.StreamHandler}
    try:
        yield
    finally:
        for handler, own in before.items():
            handler.setStream(own)


@contextmanager
def whole_stacks() -> Iterator[None]:
    """While the block lasts, traces keep all Python frames from the first `forward` on: without
    it, PyTorch keeps those called `forward`, and what they call is lost.
    """
    name = "_filter_traceback_frames"
    if not hasattr(TracerBase, name):  # of a version that filters elsewhere
        yield
        return

    def filtered(self: Any, frames: Any) -> Any:
        first = next((k for k, f in enumerate(frames) if f.name == "forward"), len(frames))
        return traceback.StackSummary.from_list(frames[first:])

    with replaced(TracerBase, name, lambda _: filtered):
        yield
