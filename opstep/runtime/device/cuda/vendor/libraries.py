"""Finds and loads cuBLASLt, cuDNN and NCCL, and tells what their error codes mean."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opstep.runtime.ir.errors import DeviceError

_WANTED = {
    "cublasLt": ("cuBLASLt", ("libcublasLt.so.13", "libcublasLt.so.12")),
    "cudnn": ("cuDNN", ("libcudnn.so.9",)),
    "nccl": ("NCCL", ("libnccl.so.2",)),
}
_OF_KERNELS = ("cublasLt", "cudnn")
INSTALL = "pip install 'opstep[vendor]'"
_INSTALL_NCCL = "PyTorch for CUDA brings it; else: pip install nvidia-nccl-cu13"


class Library:
    """A loaded library; its functions raise where they give a status that is not zero."""

    def __init__(self, name: str, loaded: ctypes.CDLL, explain: Callable[[ctypes.CDLL, int], str]):
        self.name = name
        self.loaded = loaded
        self._explain = explain
        self.lock = threading.RLock()

    def __getattr__(self, function: str) -> Callable[..., None]:
        """A function that gives a status. Raises `Refused` with what the library says of it."""
        entry = getattr(self.loaded, function)

        def call(*args: Any) -> None:
            status = entry(*args)
            if status:
                raise Refused(f"{self.name}: {function}: {self._explain(self.loaded, status)}")

        setattr(self, function, call)
        return call


class Unavailable(DeviceError):
    """A library is not there."""


class Refused(DeviceError):
    """A library does not do what it was asked; somebody else may."""


@cache
def library(key: str) -> Library:
    """Of `cublasLt`, `cudnn` and `nccl`. Raises `Unavailable`, with what installs it."""
    name, files = _WANTED[key]
    loaded = _found(files)
    if loaded is None:
        hint = _INSTALL_NCCL if key == "nccl" else INSTALL
        raise Unavailable(f"{name} is not there", hint=hint)
    says = {"cublasLt": _cublas_says, "cudnn": _cudnn_says, "nccl": _nccl_says}
    return Library(name, loaded, says[key])


def missing() -> list[str]:
    """The libraries of kernels that are not there, as people call them."""
    absent = []
    for key in _OF_KERNELS:
        try:
            library(key)
        except Unavailable:
            absent.append(_WANTED[key][0])
    return absent


def versions() -> dict[str, str]:
    """The libraries that are there, with versions: results of tuning hold for these alone."""
    found = {}
    for key, function in (("cublasLt", "cublasLtGetVersion"), ("cudnn", "cudnnGetVersion")):
        try:
            asked = getattr(library(key).loaded, function)
        except Unavailable:
            continue
        asked.restype = ctypes.c_size_t
        found[key] = str(asked())
    return found


@cache
def _found(files: tuple[str, ...]) -> ctypes.CDLL | None:
    """Its path in NVIDIA's wheels, or in the system."""
    spec = find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    wheels = [str(path) for f in files for d in folders for path in sorted(d.glob(f"*/lib/{f}"))]
    for file in (*wheels, *files):
        try:
            return ctypes.CDLL(file)
        except OSError:
            continue
    return None


def _cublas_says(loaded: ctypes.CDLL, status: int) -> str:
    loaded.cublasLtGetStatusString.restype = ctypes.c_char_p
    text = loaded.cublasLtGetStatusString(status)
    return text.decode(errors="replace") if text else f"status {status}"


def _cudnn_says(loaded: ctypes.CDLL, status: int) -> str:
    loaded.cudnnGetErrorString.restype = ctypes.c_char_p
    return (loaded.cudnnGetErrorString(status) or b"").decode(errors="replace")


def _nccl_says(loaded: ctypes.CDLL, status: int) -> str:
    """The kind of error, and the details of the last one."""
    loaded.ncclGetErrorString.restype = loaded.ncclGetLastError.restype = ctypes.c_char_p
    kind = (loaded.ncclGetErrorString(status) or b"").decode(errors="replace")
    details = (loaded.ncclGetLastError(None) or b"").decode(errors="replace").strip()
    return f"{kind} ({details.splitlines()[-1]})" if details else kind
