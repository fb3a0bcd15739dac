"""A store's structure as an argument of users' kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

import peergraph._C as _C
from peergraph.memory.table.kernel_argument import as_argument
from peergraph.store.input.source import EDGE, EdgeType
from peergraph.store.store import Store


def graph_argument(store: Store, edge_type: EdgeType = EDGE) -> np.ndarray[Any, Any]:
    """The ``peergraph::GraphView`` of a relation, for a kernel that includes ``peergraph.cuh``.

    Kernels read in-neighbours by users' ids through it, from any tier (XGNN 3).

    Args:
        store: must stay open while kernels with the argument run.
        edge_type: the relation; ``KeyError`` for an unknown one.

    Returns:
        As :func:`peergraph.memory.table_argument`.

    Raises:
        RuntimeError: the store is closed.
    """
    view = _C.GraphView(
        lists=store.csc(edge_type).view,
        destinations=store.id_map(edge_type[2]).internal_view,
        sources=store.id_map(edge_type[0]).user_view,
    )
    return as_argument(view.to_bytes())
