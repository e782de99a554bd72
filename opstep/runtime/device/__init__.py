"""The parts that all devices share: their interface (`protocols`), how a plan is bound to memory,
how kernels are declared and cached, how NaNs are flagged. A device itself is a folder: `cpu`,
`cuda`; `null` executes nothing.
"""
