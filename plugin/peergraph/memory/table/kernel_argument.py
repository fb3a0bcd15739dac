"""Tables as arguments of users' own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from peergraph.memory.table.table import Table


def as_argument(value: bytes) -> np.ndarray[Any, Any]:
    """The bytes of a C++ struct as an array of one element: so CuPy passes structs by value."""
    return np.frombuffer(value, dtype=np.dtype((np.void, len(value))))


def table_argument(table: Table) -> np.ndarray[Any, Any]:
    """The ``peergraph::TableView`` of a table, for a kernel that includes ``peergraph.cuh``.

    Args:
        table: must stay open while kernels with the argument run.

    Returns:
        One opaque element, read-only: a ``cupy.RawKernel`` takes it by value; for others its bytes
        are those of the struct. It holds addresses of this process.

    Raises:
        RuntimeError: the table is closed.
    """
    return as_argument(table.view.to_bytes())
