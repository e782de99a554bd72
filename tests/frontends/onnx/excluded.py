"""Tests of ONNX's own suite that are left out, by reason; docs/onnx.md shows the same list.

Not counted are tests of inputs or results whose element types the language has not.
"""

from __future__ import annotations

EXCLUDED: dict[str, tuple[str, ...]] = {
    "the size of a result depends on data": ("test_nonmaxsuppression_", "test_unique_"),
    "files of images are decoded": ("test_image_decoder_",),
    "random numbers of NumPy are expected": (
        "test_bernoulli", "test_training_dropout_default", "test_training_dropout_mask",
        "test_training_dropout$",
    ),
    "decision trees": ("test_ai_onnx_ml_tree_ensemble_",),
    "what is expected are errors of rounding": (
        "test_dft_inverse", "test_attention_4d_causal_fp16",
    ),
    "sequences": ("test_sequence_model",),
    "gradients as nodes": ("test_gradient_of_",),
}  # fmt: skip
