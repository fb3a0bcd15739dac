"""Passes tables to users' own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from peergraph.memory.table.table import Table


def as_argument(value: bytes) -> np.ndarray[Any, Any]:
    """Returns the bytes of a C++ struct as an array of one element, which CuPy passes by value."""
    return np.frombuffer(value, dtype=np.dtype((np.void, len(value))))


def table_argument(table: Table) -> np.ndarray[Any, Any]:
    """Returns the ``peergraph::TableView`` of a table for a kernel that includes ``peergraph.cuh``.

    Args:
        table: the table, which must stay open while kernels with the argument run.

    Returns:
        A read-only array of one opaque element, whose bytes are those of the struct. A
        ``cupy.RawKernel`` takes it by value. It contains addresses that are valid in this process.

    Raises:
        RuntimeError: the table is closed.
    """
    return as_argument(table.view.to_bytes())
