"""opstep as a backend of ONNX (`onnx.backend.base.Backend`), which its tests take as a module."""

from opstep.frontends.onnx.backend import (
    OnnxBackend,
    Prepared,
    prepare,
    run_model,
    run_node,
    supports_device,
)

__all__ = ["OnnxBackend", "Prepared", "prepare", "run_model", "run_node", "supports_device"]
