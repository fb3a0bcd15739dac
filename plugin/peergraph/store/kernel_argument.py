"""Passes a store's structure to users' own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

import peergraph._C as _C
from peergraph.memory.table.kernel_argument import as_argument
from peergraph.store.input.source import EDGE, EdgeType
from peergraph.store.store import Store


def graph_argument(store: Store, edge_type: EdgeType = EDGE) -> np.ndarray[Any, Any]:
    """Returns the ``peergraph::GraphView`` of a relation for a kernel that includes
    ``peergraph.cuh``. With it, kernels read in-neighbours by users' ids from any tier (XGNN 3).

    Args:
        store: the store, which must stay open while kernels with the argument run.
        edge_type: the relation. Raises ``KeyError`` if it is unknown.

    Returns:
        An array as from :func:`peergraph.memory.table_argument`.

    Raises:
        RuntimeError: the store is closed.
    """
    view = _C.GraphView(
        lists=store.csc(edge_type).view,
        destinations=store.id_map(edge_type[2]).internal_view,
        sources=store.id_map(edge_type[0]).user_view,
    )
    return as_argument(view.to_bytes())
