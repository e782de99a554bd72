"""Op declarations, a file a family; importing this package fills `runtime.ir.op.OPS`.

Families import NumPy and nothing slower: numba is loaded when a kernel has to be compiled.
"""

from opstep.kernels import activations as activations
from opstep.kernels import arithmetic as arithmetic
from opstep.kernels import comparison as comparison
from opstep.kernels import selection as selection
from opstep.kernels import transcendental as transcendental
