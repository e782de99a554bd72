"""Op declarations, a file a family; importing this package fills `runtime.ir.op.OPS`.

Families import NumPy and nothing slower: numba is loaded when a kernel has to be compiled.
"""

from opstep.kernels.collective import (
    moving,  # noqa: F401
    places,  # noqa: F401
    reducing,  # noqa: F401
)
from opstep.kernels.conv import (
    conv,  # noqa: F401
    conv_integer,  # noqa: F401
    conv_transpose,  # noqa: F401
    layouts,  # noqa: F401
    unfold,  # noqa: F401
)
from opstep.kernels.matmul import (
    einsum,  # noqa: F401
    matmul,  # noqa: F401
    matmul_integer,  # noqa: F401
    triangular,  # noqa: F401
)
from opstep.kernels.move import (
    creation,  # noqa: F401
    joining,  # noqa: F401
    layout,  # noqa: F401
    padding,  # noqa: F401
    shape,  # noqa: F401
    slicing,  # noqa: F401
    views,  # noqa: F401
)
from opstep.kernels.pick import (
    advanced_index,  # noqa: F401
    embedding_bag,  # noqa: F401
    index,  # noqa: F401
    masked,  # noqa: F401
    parts,  # noqa: F401
    scatter,  # noqa: F401
    scatter_reduce,  # noqa: F401
    searching,  # noqa: F401
    sort,  # noqa: F401
)
from opstep.kernels.pointwise import (
    activations,  # noqa: F401
    arithmetic,  # noqa: F401
    comparison,  # noqa: F401
    groups,  # noqa: F401
    selection,  # noqa: F401
    special,  # noqa: F401
    transcendental,  # noqa: F401
)
from opstep.kernels.pool import (
    adaptive_max,  # noqa: F401
    avgpool,  # noqa: F401
    grid_sample,  # noqa: F401
    pool,  # noqa: F401
    upsample,  # noqa: F401
)
from opstep.kernels.random import random  # noqa: F401
from opstep.kernels.reduce import (
    argreduce,  # noqa: F401
    reduce,  # noqa: F401
    running,  # noqa: F401
    scan,  # noqa: F401
)
from opstep.kernels.rows import (
    attention,  # noqa: F401
    attention_grad,  # noqa: F401
    batchnorm,  # noqa: F401
    classify,  # noqa: F401
    distance,  # noqa: F401
    loss,  # noqa: F401
    norm,  # noqa: F401
    reductions,  # noqa: F401
    softmax,  # noqa: F401
)
