"""The interpreter and what it stands on: IR, plans, devices, the debugger. Ops register themselves
from `kernels`; nothing here imports them, nor knows a protocol or the command line.
"""
