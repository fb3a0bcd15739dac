"""A graph with locality and its rows of nodes, of which each rank makes its own."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from harness.ranks import Session
from inputs.arrays import fill_features, label_rows
from inputs.counter_hash import hash_ids, shift_right, stream_key
from inputs.local_graphs import get_local_spec, make_local_csc
from torch import Tensor

from peergraph.fullgraph import FullGraph, PartitionedTensor
from peergraph.fullgraph.offload.rows.row_allocator import Role
from peergraph.fullgraph.offload.tensor.offloaded_tensor import from_store
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.store import NODE

_PIECE = 1 << 26  # features that are made at once


class Data:
    """A graph as :meth:`FullGraph.build` takes it, and rows of its nodes.

    Args:
        name: of the graph.
        folder: where features are in a file that is mapped; None: they are made where the graph
            keeps rows.
    """

    def __init__(self, session: Session, name: str, folder: Path | None = None) -> None:
        self.spec = get_local_spec(name)
        self._session, self._folder = session, folder
        with session.stage(f"graph {name}"):
            indptr, indices = make_local_csc(self.spec, session.device)
            # The device is for training.
            self.edges = indptr.cpu(), indices.cpu()

    def drop_edges(self) -> None:
        """Gives the host the memory of the edges back."""
        self.edges = self.edges[0].new_empty(0), self.edges[1].new_empty(0)

    def features(self, graph: FullGraph, columns: int) -> PartitionedTensor:
        """[nodes, columns] float32 where the graph keeps rows; no rank makes those of others.

        The graph has the order "original", so the ids of a rank's nodes are consecutive.
        """
        if self._folder is not None:
            return graph.node_rows(self._mapped_features(self._folder, columns))
        layout = graph.node_layouts[NODE]
        count, device = layout.local_count, layout.group.device
        first = int(layout.positions[0]) if count else 0
        if graph.offloaded is None:
            rows = torch.empty(count, columns, device=device)
            return from_local(fill_features(first, rows), layout)
        allocator = graph.offloaded.allocator
        role: Role = "sequential" if graph.offloaded.features_on_device else "given"
        store = allocator.allocate(layout, (columns,), torch.float32, role, what="features")
        step = max(1, _PIECE // columns)
        for start in range(0, count, step):
            piece = torch.empty(min(step, count - start), columns, device=device)
            store.write(start, fill_features(first + start, piece))
        space = graph.offloaded.spaces.find(layout)
        assert space is not None
        features = from_store(space, store)
        features._content.is_input = True  # as rows that FullGraph.node_rows reads
        return features

    def _mapped_features(self, folder: Path, columns: int) -> Tensor:
        """[nodes, columns] float32 in a file, of which rank 0 writes all. Collective."""
        path, nodes = folder / f"features-{os.getppid()}.bin", self.spec.num_nodes

        def mapped() -> Tensor:
            return torch.from_file(str(path), True, nodes * columns).view(nodes, columns)

        def write() -> None:
            write_features(0, mapped(), self._session.device)

        self._session.first_does(write)
        x = mapped()
        self._session.barrier()
        if self._session.rank == 0:
            path.unlink()
        return x

    def labels(self) -> tuple[Tensor, Tensor]:
        """Classes, and which nodes are trained on, [nodes] each."""
        ids = torch.arange(self.spec.num_nodes)
        chance = self.spec.train_nodes / self.spec.num_nodes
        drawn = shift_right(hash_ids(stream_key(5, 1), ids), 40).double() / (1 << 24)
        return label_rows(ids, self.spec.num_classes), drawn < chance


def write_features(first: int, rows: Tensor, device: torch.device) -> None:
    """Writes the features of consecutive nodes, which are made on a device piece by piece.

    Args:
        first: id of the first node.
        rows: [nodes, columns] float32 on the CPU or on the device.
    """
    step = max(1, _PIECE // rows.shape[1])
    for part, of_part in enumerate(rows.split(step)):
        piece = torch.empty_like(of_part, device=device)
        of_part.copy_(fill_features(first + part * step, piece))
