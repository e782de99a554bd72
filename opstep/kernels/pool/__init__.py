"""Pooling and resizing of images: max and average pools, upsampling; for CPU and CUDA."""
