"""`ClusterData`: PyG's partition of a graph for Cluster-GCN, over a store."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader.cluster import Partition

from peergraph.checkpoint_files import load_checkpoint
from peergraph.fullgraph import node_parts
from peergraph.memory import Group, host_rows
from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, NODE

from ..data.store_of import store_of
from ..loader.in_process import drop_workers
from .induced import InducedSubgraphs
from .saved_file import save


class ClusterData(torch_geometric.loader.ClusterData):  # type: ignore[misc]
    """``torch_geometric.loader.ClusterData`` over a store; batches are on its device.

    PyG's class becomes this one for shared data, and ``ClusterLoader`` takes it. Contents and order
    of parts and batches are PyG's for the same partition. Making one is collective: rank 0
    partitions (:func:`peergraph.fullgraph.node_parts`: METIS where pymetis is installed, else
    communities) or reads a partition that PyG or this class saved. The order of nodes is in host
    memory once on the machine, 8 bytes a node, until the ranks drop the object; no process keeps
    edges.

    Args:
        data: ``Data`` with an ``edge_index``, returned by :func:`peergraph_pyg.share`.
        num_parts, save_dir, filename, log, keep_inter_cluster_edges, sparse_format: as PyG's.
        recursive: bisect recursively, which needs pymetis.

    Raises:
        NotImplementedError: data with node types.
        ImportError: `recursive` without pymetis.
        ValueError: the saved partition is of another graph.
        MemoryError: rank 0 has too little memory to partition; save a partition elsewhere.
    """

    def __init__(
        self,
        data: Any,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: Literal["csr", "csc"] = "csr",
    ) -> None:
        if not isinstance(data, Data) or data.edge_index is None:
            raise NotImplementedError("ClusterData takes Data with an edge_index, as in PyG")
        if sparse_format not in ("csr", "csc"):
            raise ValueError(f"sparse_format must be 'csr' or 'csc', got {sparse_format!r}")
        self.data, self.num_parts, self.sparse_format = data, num_parts, sparse_format
        self.recursive, self.keep_inter_cluster_edges = recursive, keep_inter_cluster_edges
        store = store_of(data)
        group = store.group
        if group is None:
            raise RuntimeError("only the ranks that built a store can make ClusterData of it")
        self.store = store
        folder = os.path.join(save_dir or "", f"part_{num_parts}{'_recursive' * recursive}")
        path = None if save_dir is None else os.path.join(folder, filename or "metis.pt")
        bounds: list[Tensor] = []

        def fill(order: Tensor) -> None:
            partition = self._read(path) or self._make(path, log)
            order.copy_(partition.node_perm)
            bounds.append(partition.partptr.cpu())

        self._order = host_rows(group, (store.num_nodes(),), torch.int64, fill)
        self._bounds: Tensor = group.broadcast(bounds[0] if bounds else None)
        self._subgraphs = InducedSubgraphs(data)
        if keep_inter_cluster_edges:
            self._keep_whole_lists(group)

    def _keep_whole_lists(self, group: Group) -> None:
        def invert(places: Tensor) -> None:
            places[self._order.as_tensor()] = torch.arange(len(places), device="cpu")

        self._places = host_rows(group, (self._order.rows,), torch.int64, invert)
        by_row = self.sparse_format == "csr"
        self._lists = NeighborSampler(self.store.reversed() if by_row else self.store, [-1])

    @property
    def partition(self) -> Partition:
        """The bounds of parts and the order of nodes; there are no copies of edges."""
        return Partition(
            indptr=None,
            index=None,
            partptr=self._bounds,
            node_perm=self._order.as_tensor(),
            edge_perm=None,
            sparse_format=self.sparse_format,
        )

    def _read(self, path: str | None) -> Partition | None:
        if path is None or not os.path.exists(path):
            return None
        # PyG's own function would run code that is in the file.
        partition = load_checkpoint(Path(path), "partition of a graph", [Partition])
        if not isinstance(partition, Partition):
            raise ValueError(f"{path} is no partition of a graph: {type(partition).__name__}")
        sizes = partition.node_perm.numel(), partition.partptr.numel() - 1
        if sizes != (self.store.num_nodes(), self.num_parts):
            raise ValueError(
                f"{path} has {sizes[0]} nodes in {sizes[1]} parts, expected "
                f"{self.store.num_nodes()} in {self.num_parts}"
            )
        return partition

    def _make(self, path: str | None, log: bool) -> Partition:
        if log:
            print("Computing the partition...", file=sys.stderr)
        edge_index = self.store.edge_index()
        method = "metis_recursive" if self.recursive else "auto"
        part = node_parts(edge_index, self.store.num_nodes(), self.num_parts, method=method)
        if path is not None:  # with the edges, as PyG saves and reads it
            partition = self._partition(edge_index, part)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            save(partition, path)
        else:
            part, order = part.sort(stable=True)
            bounds = torch.searchsorted(part, torch.arange(self.num_parts + 1, device="cpu"))
            partition = Partition(None, None, bounds, order, None, self.sparse_format)
        if log:
            print("Done!", file=sys.stderr)
        return partition

    def __len__(self) -> int:
        return self.num_parts

    def __getitem__(self, idx: int) -> Data:
        """Returns the nodes of a part and the edges among them, or all of their edges."""
        if not -len(self) <= idx < len(self):
            raise IndexError(f"part {idx} of {len(self)}")
        part = idx % len(self)
        return self._with_all_edges(part) if self.keep_inter_cluster_edges else self.merged([part])

    def _with_all_edges(self, part: int) -> Data:
        begin, end = self._bounds[part : part + 2].tolist()
        nodes = self._order.as_tensor()[begin:end]
        sample = self._lists.sample(nodes, 0)
        assert sample.edge_ids is not None
        [own], [others] = sample.col.values(), sample.row.values()
        [edge_ids], [ids] = sample.edge_ids.values(), sample.nodes.values()
        others = self._places.gather(ids)[others]
        order = (own * self._order.rows + others).argsort(stable=True)
        ends, sizes = (own[order], others[order]), (nodes.numel(), self._order.rows)
        if self.sparse_format == "csc":
            ends, sizes = ends[::-1], sizes[::-1]
        edges = {EDGE: (*ends, edge_ids[order])}
        return self._subgraphs.data_of({NODE: nodes}, edges, {EDGE: sizes})

    def merged(self, parts: Any) -> Data:
        """Returns the nodes of several parts, in this order, and all edges among them."""
        ranges = [self._bounds[i : i + 2].tolist() for i in parts]
        places = torch.cat([torch.arange(*ends, device="cpu") for ends in ranges])
        order = self._order.as_tensor()
        nodes = torch.cat([order[begin:end] for begin, end in ranges])
        by_row = self.sparse_format == "csr"

        def arrange(row: Tensor, col: Tensor, edge_ids: Tensor) -> Tensor:
            # PyG's: by row as in the batch, then by the partition's order of columns.
            first, second = (row, col) if by_row else (col, row)
            keys = first * self._order.rows + places.to(second.device)[second]
            return keys.argsort(stable=True)

        return self._subgraphs.with_edge_ids({NODE: nodes}, arrange)[0]


def init_loader(original: Any, loader: Any, cluster_data: Any, **kwargs: Any) -> None:
    """PyG's constructor of ``ClusterLoader``; without workers over a store on a GPU."""
    if isinstance(cluster_data, ClusterData):
        drop_workers(kwargs, cluster_data.store)
    original(loader, cluster_data, **kwargs)


def collate(original: Any, loader: Any, batch: Any) -> Data:
    """PyG's ``ClusterLoader._collate``; of a partition over a store, on its device."""
    if isinstance(loader.cluster_data, ClusterData):
        return loader.cluster_data.merged(batch)
    merged: Data = original(loader, batch)
    return merged
