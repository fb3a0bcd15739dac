"""The structures of edge indices: made once and kept, or given by a loader.

An entry lives as long as its edge index. Whether the edge index still is what the structure was
made from is found by its content: on the CPU at once, on a GPU without waiting for it, so that the
structure is made anew after writes that torch counts, and an error comes later after others.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from peergraph.aggregate import (
    Csc,
    Relation,
    TracedEdges,
    TypedEdges,
    TypedPairs,
    register_finder,
)
from peergraph.integration import Unsupported, has_static_shapes, is_explaining, note

from ..compat import version_of
from .batch_structures import Attachment, attachment_at, attachment_of, attachments_of
from .contents import Contents
from .lazy_features import is_plain

Attachments = list[Attachment | None] | None
"""What a loader attached to edge indices, None for some without edges; or None, if it did not."""

# Edge indices that the cache holds: the edge types of a heterogeneous graph, or the layers
# of a few mini-batches.
_KEPT = 32


class _Entry:
    """The structures made from one edge index, or from the tensors that determine one."""

    def __init__(self, tensors: tuple[Tensor, ...], attachments: Attachments) -> None:
        ids = _ids_of(tensors)
        self._references = [weakref.ref(tensor, lambda _: _forget(ids)) for tensor in tensors]
        self.attachments = attachments
        """What a loader attached to all tensors that have edges; None if it did not."""
        self._shapes = [tensor.shape for tensor in tensors]
        self._edge_index_versions = _edge_index_versions(tensors)
        is_attached = attachments is not None
        self._contents = None if is_attached else Contents(list(map(plain, tensors)))
        self.by_key: dict[Hashable, Csc] = {}
        self.joined: dict[Hashable, Any] = {}

    def matches(self, tensors: tuple[Tensor, ...], attachments: Attachments) -> bool:
        """Returns whether these are the same tensors, with the same content.

        Args:
            attachments: of all of the tensors at the moment, if each has one.
        """
        same = zip(self._references, tensors, strict=True)
        if not all(reference() is tensor for reference, tensor in same):
            return False
        if self._edge_index_versions != _edge_index_versions(tensors):
            return False
        if self._contents is not None:
            return self._contents.match(list(map(plain, tensors)))
        if attachments is None or self.attachments is None:
            return False
        if self._shapes != [tensor.shape for tensor in tensors]:
            return False
        return self.attachments == attachments

    def is_dead(self) -> bool:
        return any(reference() is None for reference in self._references)


class _Origin:
    """The tensors that determine all edge indices of one call of a layer."""

    def __init__(self, layer: str, tensors: tuple[Tensor, ...]) -> None:
        self.layer = layer
        self.tensors = tensors
        self._last: Tensor | None = None
        self._count = 0
        self._entry: tuple[_Entry, Hashable] | None = None

    def entry(self) -> _Entry:
        """Returns the entry of the tensors. Their content is compared once in a call."""
        versions = tuple(map(version_of, self.tensors))
        if self._entry is None or self._entry[1] != versions:
            self._entry = _entry_of(self.tensors), versions
        return self._entry[0]

    def position_of(self, edge_index: Tensor) -> int:
        """Returns the position of `edge_index` among the edge indices of the call, from 1."""
        if self._last is not edge_index:
            self._last = edge_index
            self._count += 1
        return self._count


_entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
_lock = threading.Lock()
_origin: ContextVar[_Origin | None] = ContextVar("peergraph_pyg_cache_key", default=None)


def can_be_cached(*tensors: Any) -> bool:
    """Returns whether structures made from the tensors can be cached; a compiler may not see it."""
    return not torch.compiler.is_compiling() and all(map(is_plain, tensors))


def cache_key(layer: str, *tensors: Any, changes: bool = True) -> AbstractContextManager[None]:
    """Returns a context that sets the key of edge indices that a layer makes anew at every call.

    In the context, the key of an edge index is the layer, the tensors, the sizes, and the number
    of edge indices that the call used before it.

    Args:
        layer: the class of the layer; it makes the same edge indices of the same tensors.
        tensors: the user's edge index, and whatever else determines the new edge indices.
        changes: False if the layer uses the edge index itself; the key is not set then, nor if the
            tensors cannot be in the cache.
    """
    if not changes or not can_be_cached(*tensors):
        return nullcontext()
    return _set_origin(_Origin(layer, tensors))


@contextmanager
def _set_origin(origin: _Origin) -> Iterator[None]:
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def csc_of(
    edge_index: Tensor, num_destinations: int, num_sources: int, *, counted: bool = True
) -> Csc:
    """Returns the structure of an edge index, made once as long as the edge index is not written.

    The sampler made the structure of a loader's batch; to look it up does not synchronise, to make
    another structure does. On the CPU every change of the edge index is noticed: it is compared
    with a copy. On a GPU it is compared by a digest, in the order of the stream: after changes that
    torch does not count, through ``.data`` or memory shared with other libraries, a later operation
    raises an error.

    Args:
        edge_index: [2, edges] int32 or int64, plain or PyG's EdgeIndex.
        num_destinations, num_sources: bounds of its two rows.
        counted: whether this is a use of the structure (``Csc.count_use``).

    Raises:
        IndexError: the first id out of range.
        RuntimeError: the edges of an earlier call were not those of the structure.
    """
    csc = None
    if type(edge_index) is Tensor:
        attachment, edges = attachment_of(edge_index)
        if attachment is not None:
            csc = attachment.structure.csc(edges, num_destinations, num_sources)
    if csc is not None:
        if is_explaining():
            note(f"structure: the loader's, nothing is sorted or checked; {_gradients_of(csc)}")
        return csc
    origin = _origin.get()
    # Where the layer passes the user's edge index on, its structure is shared by all layers.
    is_own = origin is None or edge_index is origin.tensors[0]
    tensors = (edge_index,) if origin is None or is_own else origin.tensors
    if any(tensor.is_inference() for tensor in tensors):  # Inference mode counts no writes.
        return Csc.from_edge_index(plain(edge_index), num_destinations, num_sources)
    if origin is None or is_own:
        entries, maker = _entry_of(tensors).by_key, None
    else:
        entries, maker = origin.entry().by_key, (origin.layer, origin.position_of(edge_index))
    key = (maker, edge_index.shape[1], edge_index.dtype, num_destinations, num_sources)
    csc = entries.get(key)
    if csc is None:
        # `.data`: views in the structure would keep the edge index alive, and with it this.
        csc = entries[key] = Csc.from_edge_index(
            plain(edge_index).data, num_destinations, num_sources, transient=None
        )
    explaining = is_explaining()
    uses = csc.count_use(counted=counted and not explaining)
    if explaining:
        note(f"structure: {'kept' if uses else 'made'} for this edge index; {_gradients_of(csc)}")
    return csc


class JoinedStructure(Protocol):
    """The edges of several relations."""

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        ...


_Typed = TypeVar("_Typed", bound=TypedEdges | TypedPairs)
_Joined = TypeVar("_Joined", bound=JoinedStructure)


def typed_edges_of(kind: type[_Typed], relations: list[Relation], sizes: list[int]) -> _Typed:
    """Returns the joined edges of relations, made once as long as no edge index is written.

    Args:
        kind: how they are joined.
        relations: each edge index is a plain tensor.
        sizes: the number of nodes of each type.

    Raises:
        IndexError: the first id out of range.
    """
    key = (
        kind,
        tuple(
            [
                (each.sources, each.num_sources, each.destinations, each.self_loops)
                for each in relations
            ]
        ),
        *sizes,
    )

    fixed = has_static_shapes()
    if fixed and not issubclass(kind, TypedEdges):
        raise Unsupported("the batch has a static shape")
    if fixed:
        sizes = sizes_with_edges(relations, sizes)

    def make(_: Attachments, gradients: bool) -> _Typed:
        # Ids are verified as they are read.
        options = {"fixed": True} if fixed else {}
        return kind(relations, sizes, gradients=gradients, **options)

    edges = joined_structure([relation.edge_index for relation in relations], key, make)
    if is_explaining():
        note(f"structure: {len(relations)} relations as one matrix, {edges.matrix}")
    return edges


def sizes_with_edges(
    relations: Sequence[Relation], sizes: Sequence[int], attachments: Attachments = None
) -> list[int]:
    """Returns the number of nodes of each type up to the last one at which edges may end.

    Args:
        attachments: of the relations; None: they are looked up.
    """
    if attachments is None:
        attachments = [attachment_at(relation.edge_index) for relation in relations]
    bounds = [0] * len(sizes)
    for relation, attachment in zip(relations, attachments, strict=True):
        node_type, edges = relation.destinations, relation.edge_index.shape[1]
        size = sizes[node_type]
        count = size if edges else 0
        if edges and attachment is not None:
            bound = attachment.structure.num_destinations(edges)
            count = size if bound is None else min(bound, size)
        bounds[node_type] = max(bounds[node_type], count)
    return bounds


def joined_structure(
    edge_indices: Sequence[Tensor], key: Hashable, make: Callable[[Attachments, bool], _Joined]
) -> _Joined:
    """Returns the structure of several edge indices, made once as long as none is written.

    That of a loader's batch is made on a stream of its own, so that who waits for its sizes does
    not wait for the model's kernels.

    Args:
        edge_indices: plain tensors on one device.
        key: what the structure depends on beside the edges, and its type.
        make: makes it; takes what a loader attached to the edge indices, whose ids need no checks
            then, and whether there will be gradients.
    """
    tensors, gradients = tuple(edge_indices), torch.is_grad_enabled()
    if any(map(Tensor.is_inference, tensors)):  # Inference mode counts no writes.
        return make(None, False)
    attachments = attachments_of(tensors)
    batches = {id(each.batch): each.batch for each in attachments or () if each is not None}
    if len(batches) == 1:
        # Slices, which each step makes anew, are found by what they are slices of.
        [batch] = batches.values()
        joined, key = batch.joined, (key, *map(_slice_of, attachments or (), tensors))
    else:
        joined = _entry_of(tensors).joined
    if key not in joined:
        with torch.inference_mode(False):
            if attachments is not None and tensors[0].is_cuda and not has_static_shapes():
                events = [batch.ready for batch in batches.values()]
                structure = _make_aside(tensors, events, lambda: make(attachments, gradients))
            else:
                structure = make(attachments, gradients)
        while len(joined) >= _KEPT:
            joined.pop(next(iter(joined)), None)
        joined[key] = structure
    result: _Joined = joined[key]
    return result


def _slice_of(attachment: Attachment | None, edges: Tensor) -> tuple[int, int] | None:
    """Returns the position of an edge index in its batch, and how many of its first edges a slice
    has; None without edges.
    """
    return None if attachment is None else (attachment.position, edges.shape[1])


def _make_aside(
    tensors: tuple[Tensor, ...],
    ready: Iterable[torch.cuda.Event | None],
    make: Callable[[], _Joined],
) -> _Joined:
    """Returns what `make` returns; on a stream that waits for the events of the batch alone."""
    device = tensors[0].device
    stream, current = _stream_aside(device), torch.cuda.current_stream(device)
    for event in ready:
        if event is not None:
            stream.wait_event(event)
    with torch.cuda.stream(stream):
        structure = make()
    current.wait_stream(stream)
    for tensor in _of_each_memory(tensors):
        tensor.record_stream(stream)
    for tensor in _of_each_memory(structure.tensors()):
        tensor.record_stream(current)
    return structure


def _of_each_memory(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """Returns one of the tensors that share memory, which they use and free together."""
    return {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values()


@cache
def _stream_aside(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    return stream


def _gradients_of(csc: Csc) -> str:
    """Returns how gradients reach sources, in words."""
    atomics = csc.transient and csc.device.type != "cpu"
    return "gradients of sources by atomics" if atomics else "gradients of sources by its transpose"


def _entry_of(tensors: tuple[Tensor, ...]) -> _Entry:
    ids, attachments = _ids_of(tensors), attachments_of(tensors)
    entry = _entries.get(ids)
    if entry is None or not entry.matches(tensors, attachments):
        entry = _Entry(tensors, attachments)
    with _lock:
        _entries[ids] = entry
        _entries.move_to_end(ids)
        while len(_entries) > _KEPT:
            _entries.popitem(last=False)
    return entry


def _edge_index_versions(tensors: tuple[Tensor, ...]) -> list[int]:
    """Returns the version counters of EdgeIndex tensors: writes to them do not raise those of the
    plain tensors inside.
    """
    return [version_of(tensor) for tensor in tensors if isinstance(tensor, EdgeIndex)]


def _ids_of(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(map(id, tensors))


def _forget(ids: tuple[int, ...]) -> None:
    """Drops the entry of tensors that died. Runs at any time, so it takes no lock."""
    entry = _entries.get(ids)
    if entry is not None and entry.is_dead():
        _entries.pop(ids, None)


def plain(edge_index: Tensor) -> Tensor:
    """Returns the edge index without PyG's type."""
    if isinstance(edge_index, EdgeIndex):
        tensor: Tensor = edge_index.as_tensor()
        return tensor
    return edge_index


FINDER = "peergraph_pyg"
"""The name by which compiled layers find structures here."""


def _find(edges: TracedEdges, counted: bool) -> list[Csc]:
    """Returns the structures of the edges of a compiled layer."""
    edge_index, edge_type = edges.edge_index, edges.edge_type
    sizes = edges.num_destinations, edges.num_sources
    if edge_type is None:
        return [csc_of(edge_index, *sizes, counted=counted)]
    entries = _entry_of((edge_index, edge_type)).by_key
    key = ("relations", *edges.relations, *sizes)
    structures = [entries[each] for each in _keys(key, edges.relations) if each in entries]
    if len(structures) < len(edges.relations):
        structures = _split_relations(edge_index, edge_type, edges.relations, *sizes)
        entries.update(zip(_keys(key, edges.relations), structures, strict=True))
    for csc in structures:
        csc.count_use(counted=counted)
    return structures


def _keys(key: tuple[Hashable, ...], relations: list[int]) -> list[Hashable]:
    return [(*key, relation) for relation in relations]


def _split_relations(
    edge_index: Tensor,
    edge_type: Tensor,
    relations: list[int],
    num_destinations: int,
    num_sources: int,
) -> list[Csc]:
    """Returns the structure of each relation's edges; raises IndexError for edges of none."""
    parts = []
    for relation in relations:
        chosen = edge_index[:, edge_type == relation]
        parts.append(Csc.from_edge_index(chosen, num_destinations, num_sources, transient=None))
    if sum(csc.num_edges for csc in parts) != edge_index.shape[1]:
        raise IndexError(f"edge_type is out of bounds: there are {len(relations)} relations")
    return parts


register_finder(FINDER, _find)
