"""The C++ headers that come with the package."""

from __future__ import annotations

from pathlib import Path

import peergraph._C as _C


def include_path() -> str:
    """Returns the folder for a compiler's ``-I``, for ``#include <peergraph.cuh>``.

    The header has XGNN's device functions (section 3) ``num_neighbors``, ``neighbors`` and
    ``features`` over a store, for CUDA kernels of your own: nvcc, NVRTC (CuPy) and host compilers,
    C++17. :func:`peergraph.store.graph_argument` and :func:`peergraph.memory.table_argument` make
    the arguments that such kernels take.
    """
    return str(Path(_C.__file__).parent / "include")
