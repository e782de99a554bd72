"""What all devices share: what a device is (`protocols`), how a plan is bound to memory, how
kernels are declared and cached, how NaNs are flagged. A device itself is a folder: `cpu`, `cuda`;
`null` executes nothing.
"""
