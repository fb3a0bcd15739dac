"""DGL's frames over the tables of a store."""

from __future__ import annotations

from dgl.frame import Frame
from torch import Tensor

from peergraph.store import EdgeType, NodeType, Store

from ..compat import frame_columns
from .columns import make_columns
from .views import table_names


class FrameCache:
    """Keeps a frame for each node and edge type, with a column for each of its tables."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frames: dict[NodeType | EdgeType, Frame] = {}

    def frame(self, owner: NodeType | EdgeType, rows: int) -> Frame:
        """Returns the frame of a node or edge type; a new one if tables were added to the store."""
        names = table_names(self._store, owner)
        frame = self._frames.get(owner)
        if frame is None or list(frame.keys()) != names:
            frame = Frame(make_columns(self._store, owner, names), num_rows=rows)
            self._frames[owner] = frame
        return frame


def select_rows(frame: Frame, ids: Tensor, id_column: str | None) -> Frame:
    """Selects rows of a graph's frame; their values are read on first use.

    Args:
        frame: the frame of all nodes or edges of a type.
        ids: [rows] on the device of the subgraph.
        id_column: name of a column that gets the ids; None: no such column.
    """
    rows = frame.subframe(ids)
    for column in frame_columns(rows).values():
        # The graph's columns may be on another device than the subgraph.
        if column.device is None and column.storage.device != ids.device:
            column.device = (ids.device, {})
    if id_column is not None:
        rows[id_column] = ids
    return rows
