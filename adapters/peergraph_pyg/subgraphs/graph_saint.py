"""GraphSAINT's loaders of PyG over a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader as pyg
from torch import Tensor
from torch_geometric.data import Data
from tqdm import tqdm

from peergraph.checkpoint_files import load_checkpoint
from peergraph.memory import Group, host_rows
from peergraph.sampling import SaintNorm, SaintSampler, measure_norm, next_seed
from peergraph.store import NODE

from ..data.store_of import store_of
from ..loader.in_process import drop_workers
from .induced import InducedSubgraphs
from .saved_file import save


class GraphSAINTSampler(pyg.GraphSAINTSampler):  # type: ignore[misc]
    """The base class of GraphSAINT's loaders over a store, on its device.

    PyG's classes become the subclasses for shared data. Nodes are drawn with PyG's probabilities,
    by a seed for each batch from torch's default generator; the edges of a batch are sorted by
    target. Making a loader is collective. With ``sample_coverage``, all ranks sample for the
    normalisation; its values are in host memory once on the machine, 4 bytes for each node and
    edge, until the ranks drop the loader.

    Args:
        data: ``Data`` returned by :func:`peergraph_pyg.share`.
        batch_size, num_steps, sample_coverage, save_dir, log, kwargs: as PyG's; rank 0 reads and
            writes the file in `save_dir`, which is PyG's. ``num_workers`` has no effect for a
            store on a GPU.

    Raises:
        NotImplementedError: the data has node types.
        ValueError: as :class:`peergraph.sampling.SaintSampler`.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Any,
    ) -> None:
        if not isinstance(data, Data):
            raise NotImplementedError(
                f"{type(self).__name__} takes Data without types, as in PyG; HGTLoader samples "
                "graphs with types"
            )
        for name in ("node_norm", "edge_norm"):
            if name in data:
                raise ValueError(f"data.{name}: batches get an attribute of this name; rename it")
        store = store_of(data)
        self.data = data
        self.num_steps, self._batch_size = num_steps, batch_size
        self.sample_coverage, self.save_dir, self.log = sample_coverage, save_dir, log
        self.N, self.E = store.num_nodes(), store.num_edges()
        self.core = self._make_core(store, batch_size)
        self._subgraphs = InducedSubgraphs(data)
        drop_workers(kwargs, store)
        options = {k: v for k, v in kwargs.items() if k not in ("dataset", "collate_fn")}
        torch.utils.data.DataLoader.__init__(
            self, self, batch_size=1, collate_fn=self._collate, **options
        )
        self.norm = self._norm() if sample_coverage > 0 else None

    def _make_core(self, store: Any, size: int) -> SaintSampler:
        raise NotImplementedError

    def _sample_nodes(self, batch_size: int) -> Tensor:
        """Draws the sorted nodes of a batch."""
        return self.core.draw(next_seed())

    def __getitem__(self, index: int) -> Tensor:
        return self._sample_nodes(self._batch_size)

    def _collate(self, data_list: list[Tensor]) -> Data:
        (nodes,) = data_list
        batch, edge_ids = self._subgraphs.with_edge_ids({NODE: nodes}, arrange=None)
        batch.num_nodes = nodes.numel()
        if self.norm is not None:
            batch.node_norm = self.norm.nodes.gather(nodes)
            (ids,) = edge_ids.values()
            batch.edge_norm = self.norm.edges.gather(ids)
        return batch

    def _norm(self) -> SaintNorm:
        group = self.core.store.group
        assert group is not None
        path = os.path.join(self.save_dir or "", self._filename)
        is_saved = group.broadcast(self.save_dir is not None and os.path.exists(path))
        if is_saved:
            return self._read_norm(path, group)
        total = self.N * self.sample_coverage
        with tqdm(total=total, disable=not self.log or group.rank > 0) as bar:
            bar.set_description("Compute GraphSAINT normalization")
            norm = measure_norm(self.core, self.sample_coverage, bar.update)
        if self.save_dir is not None and group.rank == 0:
            save((norm.nodes.read(), norm.edges.read()), path)
        return norm

    def _read_norm(self, path: str, group: Group) -> SaintNorm:
        def read(rows: Tensor, place: int) -> None:
            what = "normalisation of GraphSAINT"
            saved = load_checkpoint(Path(path), what)
            is_pair = isinstance(saved, (tuple, list)) and len(saved) == 2
            if not is_pair or not all(isinstance(values, Tensor) for values in saved):
                raise ValueError(f"{path} is no {what}: expected two tensors")
            values = saved[place]
            if values.shape != rows.shape:
                raise ValueError(
                    f"{path} is of another graph: {len(values)} values, expected {len(rows)}"
                )
            rows.copy_(values)

        nodes = host_rows(group, (self.N,), torch.float32, lambda rows: read(rows, 0))
        edges = host_rows(group, (self.E,), torch.float32, lambda rows: read(rows, 1))
        return SaintNorm(nodes, edges)


class GraphSAINTNodeSampler(GraphSAINTSampler, pyg.GraphSAINTNodeSampler):  # type: ignore[misc]
    """``torch_geometric.loader.GraphSAINTNodeSampler`` over a store.

    Draws sources of uniform edges.
    """

    def _make_core(self, store: Any, size: int) -> SaintSampler:
        return SaintSampler(store, "node", size)


class GraphSAINTEdgeSampler(GraphSAINTSampler, pyg.GraphSAINTEdgeSampler):  # type: ignore[misc]
    """``torch_geometric.loader.GraphSAINTEdgeSampler`` over a store.

    Draws an edge in proportion to the in-degree of its source + the out-degree of its destination,
    as PyG does; the paper, and DGL, take the sum of the inverses.
    """

    def _make_core(self, store: Any, size: int) -> SaintSampler:
        return SaintSampler(store, "edge", size, edge_probability="degree sums")


class GraphSAINTRandomWalkSampler(GraphSAINTSampler, pyg.GraphSAINTRandomWalkSampler):  # type: ignore[misc]
    """``torch_geometric.loader.GraphSAINTRandomWalkSampler`` over a store.

    Args:
        walk_length: steps of each walk; the other arguments are those of
            :class:`GraphSAINTSampler`.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        walk_length: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Any,
    ) -> None:
        self.walk_length = walk_length
        super().__init__(data, batch_size, num_steps, sample_coverage, save_dir, log, **kwargs)

    def _make_core(self, store: Any, size: int) -> SaintSampler:
        return SaintSampler(store, "walk", size, walk_length=self.walk_length)

    @property
    def _filename(self) -> str:
        name = type(self).__name__.lower()
        return f"{name}_{self.walk_length}_{self.sample_coverage}.pt"
