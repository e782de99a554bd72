"""NumPy's own BLAS, called from kernels: the OpenBLAS that NumPy's wheels bring, found in this
process.
"""

from __future__ import annotations

import ctypes
from functools import cache

from opstep.runtime.ir.types import DType


@cache
def library() -> tuple[str, str] | None:
    """(path, description) of an OpenBLAS with 64-bit integers loaded by NumPy; None where there is
    none.
    """
    import numpy  # noqa: F401 - loads it
    from threadpoolctl import ThreadpoolController

    for found in ThreadpoolController().lib_controllers:
        if found.internal_api == "openblas" and "64_" in str(found.filepath):
            return str(found.filepath), f"OpenBLAS {found.version} ({found.architecture})"
    return None


@cache
def routine_address(routine: str, dtype: DType) -> int:
    """Address of cblas_{s,d}`routine`; 0 where it is not there."""
    letter = {"f32": "s", "f64": "d"}.get(dtype.name)
    where = library()
    if letter is None or where is None:
        return 0
    loaded = ctypes.CDLL(where[0])
    for name in (f"scipy_cblas_{letter}{routine}64_", f"cblas_{letter}{routine}64_"):
        function = getattr(loaded, name, None)
        if function is not None:
            set_threads = getattr(loaded, "scipy_openblas_set_num_threads64_", None)
            set_threads = set_threads or getattr(loaded, "openblas_set_num_threads64_", None)
            if set_threads is None:
                return 0
            set_threads(
                1
            )  # our lanes share the work; BLAS threads under them would fight for the cores
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0
