"""Models in ONNX's format as programs. Only this folder imports onnx, and only when one is met.

`importing` is what users call, `backend` what ONNX's own tests do. `reading` reads files, which it
does not trust; `assembling` puts a program together. `translator` writes a graph of ours for each
of the model's, by the `rules` for single operators, by ONNX's `definitions` of others, and by
`control` for those that have graphs; `repeats` finds blocks that come again. `scope` has the values
of a graph; what is known of them at import (`values`) is computed in `folding`. `qdq` makes
products of integers of those between dequantised values; `restoring` reads ops that our exporter
wrote as functions.

`comparing` runs a model beside ONNX Runtime and says which node is wrong on which side (`judging`,
with `quantising` and `spelled` for what ONNX's reference has not).
"""
