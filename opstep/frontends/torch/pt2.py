"""``.pt2`` files, read without trusting them.

PyTorch's reader can run code that a file brings: it unpickles objects and evaluates texts of sizes.
So files are looked through first; those with anything but tensors and a graph are refused.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import fx
from torch._export.serde.schema import SCHEMA_VERSION
from torch.export import ExportedProgram

from opstep.frontends.replacing import replaced
from opstep.frontends.torch.errors import cause
from opstep.frontends.torch.kernels import is_known, unknown
from opstep.frontends.torch.size_texts import is_size
from opstep.runtime.arrays import DAMAGE
from opstep.runtime.ir.errors import InputError, NoSuchFile

# The files in an archive, below its own folder: of today's format, and of PyTorch 2.6 and 2.7.
_KNOWN = re.compile(
    r"models/\w+\.json|data/(weights|constants)/\w+(\.json|\.pt)?|data/sample_inputs/\w+\.pt"
    r"|(archive_format|archive_version|byteorder|version)|\.(data|format)/\w+|extra/.*|extra_files/.*"
    r"|serialized_\w+\.(json|pt)"
)
_CODE = re.compile(r"data/aotinductor/|data/executorch/|.*\.(so|py|pkl|cpp)$")
_INFLATED = 1 << 24  # bytes that the files of an archive may have beyond its own size
_EXPORT = "export the model: torch.export.save(torch.export.export(model, args), FILE)"
_GRAPH = re.compile(r"models/\w+\.json|serialized_exported_program\.json")
_OP = re.compile(r'"target": ?"torch\.ops\.(\w+)\.(\w+)\.(\w+)"')
_TREES = ("default_factory", "__enum__")  # of containers that import modules to make themselves
_TARGETS = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)


def read(path: Path) -> ExportedProgram:
    """Raises `InputError`."""
    check(path)
    log = logging.getLogger("torch")
    before = log.level
    try:
        log.setLevel(logging.CRITICAL)  # what it warns of is said below
        with replaced(torch, "load", _only_tensors):
            found = torch.export.load(path)
    except Exception as error:  # of any class: PyTorch checks little of what it reads
        for name in _unknown_ops(path):
            raise unknown(name) from None
        raise InputError(_refusal(path, error)) from None
    finally:
        log.setLevel(before)
    for module in found.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if node.op == "call_function" and not _is_op(node.target):
                raise InputError(f"{path}: calls {node.target}, which is no op")
    return found


def _unknown_ops(path: Path) -> Iterator[str]:
    """Ops that the graph calls and that nobody has registered."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if _GRAPH.fullmatch(_below_root(name)):
                for library, op, overload in _OP.findall(
                    archive.read(name).decode(errors="replace")
                ):
                    if not is_known(library, op, overload.replace("default", "")):
                        yield f"torch.{library}.{op}"


def _refusal(path: Path, error: Exception) -> str:
    reason = cause(error)
    if "version" in reason.lower() and "match" in reason.lower():
        return f"{path}: written by another version of PyTorch than {torch.__version__}: {reason}"
    return f"{path}: PyTorch {torch.__version__} cannot read it: {reason}"


def _is_op(target: Any) -> bool:
    module = getattr(target, "__module__", "")
    number = module in ("_operator", "math") or (
        module == "torch" and getattr(target, "__name__", "").startswith("sym_")
    )
    return isinstance(target, _TARGETS) or number


def _only_tensors(load: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.load` that makes nothing but tensors, whatever it is asked for."""
    return lambda *args, **kwargs: load(*args, **{**kwargs, "weights_only": True})


def check(path: Path) -> None:
    """Complains of a file that is no archive, or holds more than tensors and a graph."""
    if not path.exists():
        raise NoSuchFile(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise InputError(f"{path}: holds two files of one name")
            size, there = sum(m.file_size for m in archive.infolist()), path.stat().st_size
            if size > there + _INFLATED:
                raise InputError(
                    f"{path}: says it holds {size:,} bytes, more than fit in a file of {there:,}"
                )
            for name in names:
                _check_member(path, archive, name)
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(
            f"{path}: not an exported program, or a damaged one: {cause(error)}",
            hint=_EXPORT,
        ) from None


def _check_member(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    inner = _below_root(name)
    if inner == "data.pkl":
        raise InputError(
            f"{path}: written by torch.save: it holds Python objects, which are never read",
            hint=_EXPORT,
        )
    if _CODE.match(inner):
        raise InputError(f"{path}: holds code ({inner}), which is never run")
    if not _KNOWN.fullmatch(inner):
        raise InputError(f"{path}: not an exported program: it holds {inner}")
    if inner.startswith("extra"):
        return
    if inner.endswith(".json"):
        content = json.loads(archive.read(name))
        _check_version(path, content)
        _check_json(path, content)
    elif inner.endswith(".pt"):
        _check_tensors(path, inner, archive.read(name))


def _below_root(name: str) -> str:
    """A path in an archive without the archive's own folder."""
    parts = PurePosixPath(name).parts
    return "/".join(parts if len(parts) == 1 or parts[0] == "extra_files" else parts[1:])


def _check_tensors(path: Path, inner: str, data: bytes) -> None:
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise InputError(
            f"{path}: {inner} holds more than tensors, and is not read: it can run code"
            f" ({cause(error, 80)})"
        ) from None


def _check_version(path: Path, content: Any) -> None:
    """Complains of a graph in a format that is newer than this PyTorch: all it says is that it
    cannot read it.
    """
    version = content.get("schema_version") if isinstance(content, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if isinstance(major, int) and major > SCHEMA_VERSION[0]:
        raise InputError(
            f"{path}: written by a newer version of PyTorch than {torch.__version__}",
            hint="upgrade PyTorch here, or export the model with this version",
        )


def _check_json(path: Path, value: Any, key: str = "") -> None:
    """Complains of texts that would be evaluated and could do more than to name a size."""
    if isinstance(value, dict):
        for k, v in value.items():
            _check_json(path, v, k)
    elif isinstance(value, list):
        for v in value:
            _check_json(path, v, key)
    elif isinstance(value, str):
        if key == "expr_str" and not is_size(value):
            raise InputError(f"{path}: {value[:80]!r} is no size, and is not evaluated")
        if key.endswith("_spec") and any(word in value for word in _TREES):
            raise InputError(f"{path}: takes or gives containers that bring code of their own")
        if key == "path_name" and value.startswith(("custom_obj", "opaque_obj")):
            raise InputError(f"{path}: holds a Python object ({value}), which is never read")
