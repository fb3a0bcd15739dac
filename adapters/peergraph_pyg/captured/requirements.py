"""What a step of fixed shapes cannot do, refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import TensorFrame

from peergraph.integration import is_split
from peergraph.store import EDGE, NODE, Store

from ..data.frames import StoredFrame
from ..data.store_of import find_store
from ..loader.batch_negatives import HardNegatives, InBatchNegatives
from ..loader.exclude_targets import ExcludeTargets
from ..loader.sampler import NeighborSampler

# Other classes may draw from generators of their own, whose states cannot be restored after
# batches are drawn to find the capacities.
_NEGATIVES = (type(None), NegativeSampling, InBatchNegatives, HardNegatives)


def check_loader(loader: Any) -> Store:
    """Returns the store of a loader whose batches can have a fixed shape.

    Raises:
        TypeError: `loader` is no loader of neighbours over shared data.
        NotImplementedError: naming an option that is not supported.
        IndexError: an input node, or an end of a link, is no node.
    """
    if not isinstance(loader, (NodeLoader, LinkLoader)):
        raise TypeError(
            f"loader must be a NeighborLoader or a LinkNeighborLoader, got {type(loader).__name__}"
        )
    store = find_store(loader.data)
    sampler = loader.node_sampler if isinstance(loader, NodeLoader) else loader.link_sampler
    if store is None or not isinstance(sampler, NeighborSampler):
        raise TypeError(
            f"loader: {type(loader).__name__} is not over data that peergraph_pyg.share() returned"
        )
    of_neighbors = isinstance(loader, (NeighborLoader, LinkNeighborLoader))
    if not of_neighbors or not isinstance(loader.data, (Data, HeteroData)):
        raise NotImplementedError(
            f"loader: {type(loader).__name__} over {type(loader.data).__name__}; capture supports "
            "NeighborLoader and LinkNeighborLoader over Data or HeteroData"
        )
    _check_options(loader, sampler, store)
    inputs = loader.input_data
    if isinstance(loader, NodeLoader):
        _check_ids("input_nodes", inputs.node, store.num_nodes(inputs.input_type or NODE))
    else:
        source, _, destination = inputs.input_type or EDGE
        _check_ids("edge_label_index", inputs.row, store.num_nodes(source))
        _check_ids("edge_label_index", inputs.col, store.num_nodes(destination))
    return store


def _check_ids(name: str, ids: Tensor, count: int) -> None:
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise IndexError(f"{name}: an id is out of range for {count} nodes")


def _excludes_targets(loader: Any, sampler: NeighborSampler) -> bool:
    """Returns whether a loader changes nothing of its samples, or only removes target links."""
    change = loader.transform_sampler_output
    is_supported = isinstance(loader, LinkLoader) and not sampler.disjoint
    return change is None or (is_supported and type(change) is ExcludeTargets)


def _unsupported_frames(data: Data | HeteroData) -> Iterator[str]:
    """Yields frames and columns whose rows have no fixed size, as text."""
    for storage in data.stores:
        for name, frame in storage.items():
            if not isinstance(frame, TensorFrame):
                continue
            if not isinstance(frame, StoredFrame):
                yield f"a TensorFrame that is not shared, {name!r},"
                continue
            for field in frame.spec.fields:
                if field.layout == "lists":
                    yield f"{name!r} with lists ({field.stype})"


def _check_options(loader: Any, sampler: NeighborSampler, store: Store) -> None:
    negatives = getattr(loader, "neg_sampling", None)
    refused = {
        f"neg_sampling by {type(negatives).__name__}": type(negatives) not in _NEGATIVES,
        "transform (call it in `loss`)": loader.transform is not None,
        "transform_sampler_output": not _excludes_targets(loader, sampler),
        "subgraph_type": sampler.subgraph_type is not SubgraphType.directional,
        "sample_direction": sampler.sample_direction != "forward",
        "batch_sampler": loader.batch_size is None,
        'machines="shard"': is_split(store),
        **{f"{what} in the data": True for what in _unsupported_frames(loader.data)},
    }
    for name, is_set in refused.items():
        if is_set:
            raise NotImplementedError(f"{name} of the loader is not supported by capture")
