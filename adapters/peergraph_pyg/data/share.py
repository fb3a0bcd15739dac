"""`share`: a PyG graph of one rank becomes a PyG graph of all ranks, over one store."""

from __future__ import annotations

from os import PathLike
from typing import Any, TypeVar, overload

from torch_geometric.data import Data, HeteroData

from peergraph.integration import share_graph
from peergraph.store import GraphSource

from .split import is_shared, join, split

DataT = TypeVar("DataT", Data, HeteroData)


@overload
def share(
    data: DataT,
    *,
    plan: Any = ...,
    memory_budget: Any = ...,
    spill: str | PathLike[str] | None = ...,
    host_budget: int | None = ...,
    device: Any = ...,
    timeout: float | None = ...,
    progress: Any = ...,
) -> DataT: ...
@overload
def share(
    data: Any = ...,
    *,
    plan: Any = ...,
    memory_budget: Any = ...,
    spill: str | PathLike[str] | None = ...,
    host_budget: int | None = ...,
    device: Any = ...,
    timeout: float | None = ...,
    progress: Any = ...,
) -> Any: ...
def share(
    data: Any = None,
    *,
    plan: Any = "auto",
    memory_budget: Any = None,
    spill: str | PathLike[str] | None = None,
    host_budget: int | None = None,
    device: Any = None,
    timeout: float | None = None,
    progress: Any = None,
) -> Any:
    """Puts a graph into one store that all ranks of this machine read. Collective.

    Returns the same type of object on every rank: ``edge_index`` (or ``adj_t``, or ``adj``) and the
    node-level and edge-level tensors (and NumPy arrays) are store tensors, everything else is a
    copy of what rank 0 has.
    PyG's ``NeighborLoader`` and ``LinkNeighborLoader`` take it as they are. The memory is freed by
    ``store_of(data).close()`` (collective), or with the last rank; what reads it later, a loader
    that is being iterated too, raises ``RuntimeError``.

    Data made of shared data is shared again where a transform gave it other nodes or edges, or
    columns that all ranks are to have once. It gets a store of its own, filled from the first one;
    close that one when it is needed no more.

    Args:
        data: the graph, on rank 0. What other ranks pass is not used; they may pass ``None``, or
            what the same transforms made of their data: where these draw random numbers, all ranks
            get rank 0's.
        plan: where structure and tables lie: ``"auto"``, ``"replicated"``, ``"sharded"``,
            ``"host"`` or a ``peergraph.store.Plan``.
        memory_budget: for ``"auto"``, as ``peergraph.store.Store.build`` takes it.
        spill: folder for the coldest rows, for what the host does not hold; see docs/disk.md.
        host_budget: bytes the store may take of the host's memory; default: what is free.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:i"``; default: see
            ``peergraph.memory.Group.current``.
        timeout: seconds to wait for the other ranks.
        progress: as ``peergraph.store.Store.build`` takes it.

    Raises:
        TypeError: if rank 0's data is neither ``Data`` nor ``HeteroData``. This and the following
            are raised on all ranks.
        ValueError: if all of it is in a store already, a number of nodes is unknown, or the parts
            contradict each other.
        MemoryError, OSError: the host, or the folder `spill`, has less room than the plan needs.
        NotImplementedError: for tensors that require gradients, and for ``adj`` and ``adj_t`` in
            other forms than torch's CSR, CSC and COO and torch-sparse's ``SparseTensor``.
        pickle.PicklingError, AttributeError: for an attribute that cannot be sent to other ranks.
    """

    def split_unshared() -> tuple[Data | HeteroData, GraphSource]:
        if isinstance(data, (Data, HeteroData)) and is_shared(data):
            raise ValueError(
                "data is shared already; to place it otherwise, share data.clone(), which "
                "reads all of it, or save its store and load it with another plan"
            )
        return split(data)

    return share_graph(
        split_unshared,
        join,
        plan=plan,
        memory_budget=memory_budget,
        spill=spill,
        host_budget=host_budget,
        device=device,
        timeout=timeout,
        progress=progress,
    )
