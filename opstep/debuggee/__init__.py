"""In the process of a Python script that is debugged: a helper beside debugpy's pydevd.

``extension/`` is put on PYTHONPATH by the proxy (`opstep.dap.python`), where pydevd finds its
extension before the script begins. `helper` answers the proxy, `expressions` has functions of
tensors, `past` records what was; `opstep.frontends.torch.debugging` is for PyTorch alone.
"""
