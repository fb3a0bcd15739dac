"""Structures of edge indices, kept for as long as the edge index lives."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor
from torch_geometric import EdgeIndex

from peergraph.aggregate import Csc
from peergraph.integration import is_explaining, note

from ..loader.batch_csc import lookup

# Edge indices that are remembered at once: the edge types of a heterogeneous graph, or the layers
# of a few mini-batches.
_KEPT = 32


class _Structures:
    """What was made from one edge index, and from what else its edges were chosen by."""

    def __init__(self, tensors: tuple[Tensor, ...], state: Hashable) -> None:
        ids = _ids_of(tensors)
        self._references = [weakref.ref(tensor, lambda _: _forget(ids)) for tensor in tensors]
        self._state = state
        self.by_key: dict[Hashable, Csc] = {}

    def are_of(self, tensors: tuple[Tensor, ...], state: Hashable) -> bool:
        """Whether these are the same tensors, not written to since."""
        pairs = zip(self._references, tensors, strict=True)
        return self._state == state and all(reference() is tensor for reference, tensor in pairs)

    def are_dead(self) -> bool:
        return any(reference() is None for reference in self._references)


class _Origin:
    """The tensors that determine all edge indices of one call of a layer."""

    def __init__(self, how: str, tensors: tuple[Tensor, ...]) -> None:
        self.how = how
        self.tensors = tensors
        self._last: Tensor | None = None
        self._count = 0

    def position_of(self, edge_index: Tensor) -> int:
        """The how manieth edge index of the call this is."""
        if self._last is not edge_index:
            self._last = edge_index
            self._count += 1
        return self._count


_structures: OrderedDict[tuple[int, ...], _Structures] = OrderedDict()
_lock = threading.Lock()
_origin: ContextVar[_Origin | None] = ContextVar("peergraph_pyg_origin", default=None)


@contextmanager
def derived_from(how: str, *tensors: Tensor) -> Iterator[None]:
    """Layers that make new edge indices of their arguments at every call say here from what.

    Inside, an edge index is known by the tensors, by its sizes and by being the n-th of the call.

    Args:
        how: names the way; the same way makes the same edge indices of the same tensors.
        tensors: the user's edge index, and what else decides.
    """
    token = _origin.set(_Origin(how, tensors))
    try:
        yield
    finally:
        _origin.reset(token)


def structure_of(edge_index: Tensor, num_destinations: int, num_sources: int) -> Csc:
    """The structure of an edge index, made once for an edge index that is not written to.

    That of a loader's batch was made by the sampler; it is one of a mini-batch, and asking for it
    does not synchronise; making another does. Changes are seen by the version that torch counts;
    those past it, through ``.data`` or memory shared with numpy, are not.

    Args:
        edge_index: [2, edges] int32 or int64, plain or PyG's EdgeIndex.
        num_destinations, num_sources: bounds of its two rows.

    Raises:
        IndexError: the first id out of range.
    """
    batch_csc = lookup(edge_index) if type(edge_index) is Tensor else None
    found = None if batch_csc is None else batch_csc.csc(edge_index, num_destinations, num_sources)
    if found is not None:
        note(f"structure: the loader's, nothing is sorted or checked; {_gradients_of(found)}")
        return found
    origin = _origin.get()
    # The edge index itself, where the layer passes on the user's, is shared by all layers.
    if origin is None or edge_index is origin.tensors[0]:
        tensors: tuple[Tensor, ...] = (edge_index,)
        made: tuple[str, int] | None = None
    else:
        tensors, made = origin.tensors, (origin.how, origin.position_of(edge_index))
    key = (made, edge_index.shape[1], edge_index.dtype, num_destinations, num_sources)
    if any(tensor.is_inference() for tensor in tensors):  # These count no versions.
        return Csc.from_edge_index(plain(edge_index), num_destinations, num_sources)
    with _lock:
        kept = _structures_of(tensors).by_key
        csc = kept.get(key)
    is_kept = csc is not None
    if csc is None:
        # A structure that holds views of the edge index would keep it alive, and so itself.
        csc = kept[key] = Csc.from_edge_index(
            plain(edge_index).data, num_destinations, num_sources, transient=None
        )
    csc.count_use(counted=not is_explaining())
    note(f"structure: {'kept' if is_kept else 'made'} for this edge index; {_gradients_of(csc)}")
    return csc


def _gradients_of(csc: Csc) -> str:
    """How gradients reach sources, in words."""
    atomics = csc.transient and csc.device.type != "cpu"
    return "gradients of sources by atomics" if atomics else "gradients of sources by its transpose"


def _structures_of(tensors: tuple[Tensor, ...]) -> _Structures:
    ids = _ids_of(tensors)
    state = tuple(_state_of(tensor) for tensor in tensors)
    found = _structures.get(ids)
    if found is None or not found.are_of(tensors, state):
        found = _structures[ids] = _Structures(tensors, state)
    _structures.move_to_end(ids)
    while len(_structures) > _KEPT:
        _structures.popitem(last=False)
    return found


def _ids_of(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(id(tensor) for tensor in tensors)


def _forget(ids: tuple[int, ...]) -> None:
    """Frees what belongs to tensors that died. Runs at any time, so it takes no lock."""
    found = _structures.get(ids)
    if found is not None and found.are_dead():
        _structures.pop(ids, None)


def plain(edge_index: Tensor) -> Tensor:
    """The edge index without PyG's type."""
    if isinstance(edge_index, EdgeIndex):
        tensor: Tensor = edge_index.as_tensor()
        return tensor
    return edge_index


def _state_of(tensor: Tensor) -> Hashable:
    tensor = plain(tensor)
    return tensor._version, tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
