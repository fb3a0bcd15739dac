"""`FeatureStore`: the tables of a store as PyG's feature store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import TensorAttr

from peergraph.store import EDGE, NODE, EdgeType, NodeType, Store, TableTensor

from .frames import StoredFrame
from .lazy_features import LazyTable, StoredTable

Owner = NodeType | EdgeType


class FeatureStore(torch_geometric.data.FeatureStore):  # type: ignore[misc]
    """Node and edge tables of a store as a PyG feature store.

    Groups are node types and edge types; ``None`` is the node type of a homogeneous graph, and
    ``peergraph.store.EDGE`` its edge type. Reading is one-sided. ``index=None`` gives a
    :class:`TableTensor`, which reads rows when they are asked for; an index gives a plain tensor
    on the store's device. A missing tensor raises ``KeyError``.

    Writing an existing tensor (``put_tensor``, ``update_tensor``) is one-sided, in place, and
    visible to all ranks. Putting a new tensor adds a table to the store and is collective: every
    rank calls it, and rank 0's values are stored; rows outside a partial index are zero.
    ``remove_tensor`` removes a name from this object's list and keeps the memory, which a later put
    under that name reuses. Pickles as a handle, as the store does.

    Args:
        store: the store.
        lazy: names of tensors whose rows are not gathered; see :func:`peergraph_pyg.lazy`.
        as_stored: likewise, of those in `lazy`.

    Raises:
        ValueError: no node or edge type has a tensor of a name in `lazy`.
    """

    def __init__(self, store: Store, *, lazy: Sequence[str] = (), as_stored: bool = False) -> None:
        super().__init__()
        self.store = store
        self._tensors: dict[tuple[Owner, str], TableTensor] = {}
        self._removed: dict[tuple[Owner, str], TableTensor] = {}
        self._frames: dict[tuple[Owner, str], StoredFrame] = {}
        for node_type in store.node_types:
            self._add(node_type, store.node_table_names(node_type))
        for edge_type in store.edge_types:
            self._add(edge_type, store.edge_table_names(edge_type))
        for lazy_name in lazy:
            if not self.tensors_named(lazy_name):
                raise ValueError(f"no node or edge type has a shared tensor {lazy_name!r}")
        for (owner, name), tensor in self._tensors.items():
            if name in lazy:
                kind = StoredTable if as_stored else LazyTable
                self._tensors[owner, name] = kind.of(tensor)

    def _add(self, owner: Owner, tables: list[str]) -> None:
        frames = self.store.frames(owner)
        columns = {field.table(name) for name, spec in frames.items() for field in spec.fields}
        for name in frames:
            self._frames[owner, name] = StoredFrame(self.store, owner, name)
        for name in tables:
            if name not in columns:
                self._tensors[owner, name] = TableTensor(self.store, owner, name)

    def __getstate__(self) -> dict[str, Any]:
        # Handles, as the store is: a tensor alone is pickled as its values.
        return {
            **self.__dict__,
            "_tensors": {key: t.reduce_to_process() for key, t in self._tensors.items()},
            "_removed": {key: t.reduce_to_process() for key, t in self._removed.items()},
            "_frames": {key: frame.reduce_to_process() for key, frame in self._frames.items()},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        handles: tuple[dict[Any, Any], ...] = (self._tensors, self._removed, self._frames)
        for tensors in handles:
            for key, (make, arguments) in list(tensors.items()):
                tensors[key] = make(*arguments)

    def _key(self, attr: TensorAttr) -> tuple[Owner, str]:
        group = attr.group_name
        if group is None and self.store.is_homogeneous:
            group = NODE
        return group, attr.attr_name

    def _get_tensor(self, attr: TensorAttr) -> Any:
        tensor = self._tensors.get(self._key(attr), self._frames.get(self._key(attr)))
        if tensor is None:
            raise KeyError(f"no tensor {attr.attr_name!r} of {attr.group_name!r} in the store")
        return tensor if attr.index is None else tensor[attr.index]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        if frame := self._frames.get(self._key(attr)):
            return len(frame), frame.num_cols
        if self._key(attr) not in self._tensors:
            return None
        return tuple(self._get_tensor(attr).shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """New attributes for each of this store's tensors; PyG's loaders change them.

        Edge tensors of a homogeneous graph are not listed, since PyG's loaders would index them by
        node ids; ``get_tensor`` finds them, and batches have them (:meth:`add_edge_tensors`).
        """
        names = [*self._tensors, *self._frames]
        if not self.store.is_homogeneous:
            return [self._tensor_attr_cls(owner, name) for owner, name in names]
        return [self._tensor_attr_cls(None, name) for owner, name in names if owner == NODE]

    def tensors(self) -> list[TableTensor]:
        """Returns the tensors of all node and edge types."""
        return list(self._tensors.values())

    def tensors_named(self, name: str) -> list[TableTensor]:
        """Returns the tensors of all node and edge types that have this name."""
        return [tensor for (_, own), tensor in self._tensors.items() if own == name]

    def add_edge_tensors(self, batch: Any, edge_ids: Any) -> None:
        """Adds rows of edge tensors to a batch, which PyG's loaders leave out.

        Args:
            batch: ``Data``, or ``HeteroData`` where ``edge_ids`` is a dict by edge type.
            edge_ids: ``[edges]`` ids in the order of the batch's edges, or ``None`` if unknown.
        """
        by_type = edge_ids if isinstance(edge_ids, dict) else {EDGE: edge_ids}
        tensors: dict[tuple[Owner, str], Any] = {**self._tensors, **self._frames}
        for (owner, name), values in tensors.items():
            ids = by_type.get(owner)
            if ids is not None:
                storage = batch[owner] if isinstance(edge_ids, dict) else batch
                is_frame = isinstance(values, StoredFrame)
                storage[name] = values[ids] if is_frame else values.index_select(0, ids)

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Writes an existing tensor in place, as ``put_tensor`` does."""
        return bool(self.put_tensor(tensor, *args, **kwargs))

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        key = self._key(attr)
        if key in self._frames:
            raise NotImplementedError(f"frame {key[1]!r} of {key[0]!r}: its rows are not written")
        tensor = torch.as_tensor(tensor)
        target = self._tensors.get(key, self._removed.get(key))
        if target is None:
            target = self._create(key, tensor, attr.index)
        else:
            _write(target, tensor, attr.index)
        self._removed.pop(key, None)
        self._tensors[key] = target
        return True

    def _create(self, key: tuple[Owner, str], tensor: Tensor, index: Any) -> TableTensor:
        owner, name = key
        values = None
        if self.store.group is None or self.store.group.rank == 0:
            values = tensor if tensor.device == self.store.device else tensor.cpu()
            if not _is_whole(index):
                values = values.new_zeros(self._num_rows(owner), *values.shape[1:])
                values[index] = tensor.to(values.device)
        if isinstance(owner, tuple):
            self.store.add_edge_table(name, values, owner)
        else:
            self.store.add_node_table(name, values, owner)
        return TableTensor(self.store, owner, name)

    def _num_rows(self, owner: Owner) -> int:
        if isinstance(owner, tuple):
            return self.store.num_edges(owner)
        return self.store.num_nodes(owner)

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        key = self._key(attr)
        if key not in self._tensors:
            return False
        self._removed[key] = self._tensors.pop(key)
        return True


def _is_whole(index: Any) -> bool:
    return index is None or (isinstance(index, slice) and index == slice(None))


def _write(target: TableTensor, tensor: Tensor, index: Any) -> None:
    if tensor.dtype != target.dtype:
        raise ValueError(f"tensor must be {target.dtype} as stored, got {tensor.dtype}")
    if not _is_whole(index):
        target[index] = tensor
        return
    if tensor.shape != target.shape:
        raise ValueError(f"tensor must be {list(target.shape)} as stored, got {list(tensor.shape)}")
    target.copy_(tensor)
