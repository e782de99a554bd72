"""Op declarations, a file a family; importing this package fills `runtime.ir.op.OPS`.

Families import NumPy and nothing slower: numba is loaded when a kernel has to be compiled.
"""

from opstep.kernels import activations as activations
from opstep.kernels import argreduce as argreduce
from opstep.kernels import arithmetic as arithmetic
from opstep.kernels import avgpool as avgpool
from opstep.kernels import batchnorm as batchnorm
from opstep.kernels import classify as classify
from opstep.kernels import comparison as comparison
from opstep.kernels import conv as conv
from opstep.kernels import creation as creation
from opstep.kernels import einsum as einsum
from opstep.kernels import index as index
from opstep.kernels import joining as joining
from opstep.kernels import layout as layout
from opstep.kernels import loss as loss
from opstep.kernels import matmul as matmul
from opstep.kernels import norm as norm
from opstep.kernels import padding as padding
from opstep.kernels import pool as pool
from opstep.kernels import random as random
from opstep.kernels import reduce as reduce
from opstep.kernels import scan as scan
from opstep.kernels import scatter as scatter
from opstep.kernels import selection as selection
from opstep.kernels import shape as shape
from opstep.kernels import slicing as slicing
from opstep.kernels import softmax as softmax
from opstep.kernels import sort as sort
from opstep.kernels import transcendental as transcendental
from opstep.kernels import upsample as upsample
