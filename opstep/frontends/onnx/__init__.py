"""Models in ONNX's format. Only this folder imports onnx, and only when such a model is met."""
