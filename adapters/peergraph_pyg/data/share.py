"""`share`: turns one rank's PyG graph into a PyG graph of all ranks, over one store."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from torch_geometric.data import Data, HeteroData
from typing_extensions import Unpack

from peergraph.integration import SplitGraph, share_graph
from peergraph.store import PlacementOptions, Store

from .split import is_shared, join, plain_values, split
from .time_order import sort_by_time

DataT = TypeVar("DataT", Data, HeteroData)


@overload
def share(
    data: DataT,
    *,
    time_attr: str | None = ...,
    device: Any = ...,
    timeout: float | None = ...,
    progress: bool | None = ...,
    **options: Unpack[PlacementOptions],
) -> DataT: ...
@overload
def share(
    data: Any = ...,
    *,
    time_attr: str | None = ...,
    device: Any = ...,
    timeout: float | None = ...,
    progress: bool | None = ...,
    **options: Unpack[PlacementOptions],
) -> Any: ...
def share(
    data: Any = None,
    *,
    time_attr: str | None = None,
    device: Any = None,
    timeout: float | None = None,
    progress: bool | None = None,
    **options: Unpack[PlacementOptions],
) -> Any:
    """Puts a graph into one store on each machine, which its ranks read. Collective over all ranks
    of all machines.

    Every rank gets data of the same type. Its ``edge_index`` (or ``adj_t``, or ``adj``) and its
    tensors and NumPy arrays with a row for each node or edge are store tensors; its frames of
    PyTorch Frame are :class:`StoredFrame`; all else is a copy of rank 0's. PyG's
    ``NeighborLoader`` and ``LinkNeighborLoader`` accept it without changes.
    ``store_of(data).close()`` (collective) or the end of the last rank frees the memory; reading it
    later raises ``RuntimeError``, also in loaders that are being iterated.

    Data that was made from shared data can be shared again, for example after a transform has
    changed its nodes or edges, or to share new columns. It gets a new store, filled from the first
    one, which may then be closed.

    Args:
        data: the graph, on the first rank of the machine. The argument of other ranks is ignored;
            they may pass ``None``, or the result of the same transforms. If the first rank of a
            machine passes ``None``, the first machine that has the graph sends it to that machine.
            Machines that have the graph must have the same graph.
        time_attr: sorts the neighbours of each node by this attribute, of edges or of their source
            nodes, as PyG's ``NeighborLoader(time_attr=...)`` does for itself: loaders with this
            ``time_attr`` then bisect lists, so that long ones cost their logarithm. The order of
            the edges, and their ids, stay the user's. It takes a sort of all edges on rank 0, and
            an id for each edge in the store. Loaders sample by any other ``time_attr``, too.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:i"``; default: see
            ``peergraph.memory.Group.current``.
        timeout: seconds to wait for the other ranks.
        progress: whether to show progress bars of long loads; default: if stderr is a terminal.
        options: placement of structure and tables: ``plan``, ``memory_budget``, ``hotness``,
            ``spill``, ``host_budget``, ``machines`` and the others of
            :class:`peergraph.store.PlacementOptions`.

    Raises:
        TypeError: rank 0's data is neither ``Data`` nor ``HeteroData``, or a keyword is unknown.
            All errors are raised on all ranks.
        ValueError: all of the data is in a store already, nothing or both nodes and edges have
            `time_attr`, a number of nodes is unknown, the
            attributes contradict each other, or machines bring different graphs.
        MemoryError, OSError: the host, or the folder `spill`, has less room than the plan needs.
        NotImplementedError: a list, or an array of texts, has more than 10,000 rows; a frame has a
            part that no table can hold; a tensor requires gradients, or ``adj`` or ``adj_t`` is
            in another layout than torch's CSR, CSC and COO and torch-sparse's ``SparseTensor``.
        pickle.PicklingError, AttributeError: an attribute cannot be sent to other ranks.
    """

    def split_unshared() -> SplitGraph[Data | HeteroData]:
        if isinstance(data, (Data, HeteroData)) and is_shared(data):
            raise ValueError(
                "data is shared already; to place it otherwise, share data.clone(), which "
                "reads all of it, or save its store and load it with another plan"
            )
        outline, source = split(data)
        if time_attr is not None:
            sort_by_time(source, time_attr)
        return SplitGraph(outline, source, contents=plain_values(outline))

    def join_store(outline: Any, tensors: Any, store: Store) -> Any:
        return join(outline, store)

    return share_graph(
        split_unshared,
        join_store,
        brings=data is not None,
        device=device,
        timeout=timeout,
        progress=progress,
        **options,
    )
