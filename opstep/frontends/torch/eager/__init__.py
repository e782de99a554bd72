"""Watches the ops that eager PyTorch runs: forward, backward, losses and optimizers.

`session` enters it around a script. A *watcher* sees each ATen op below autograd: `native` by C++
that is compiled on the first use, `dispatch` by a `TorchDispatchMode`. It looks at what an op has
written, and calls `births` where that is not finite. `harm` decides at which values a NaN or an
infinity matters; `reasons` and `findings` say what made it.
"""
