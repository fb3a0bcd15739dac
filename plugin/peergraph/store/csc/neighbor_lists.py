"""Writes and reads the neighbour lists of a structure, in users' ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on, threads_of_rank
from peergraph.memory.table.distant_rows import wait_for
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.id_map import IdMap

_CHUNK_EDGES = 1 << 24


def write_lists(
    structure: TieredCsc,
    first: int,
    indptr: Tensor,
    indices: Tensor,
    edge_begin: int,
    destinations: IdMap,
    sources: IdMap,
) -> Iterator[int]:
    """Writes the neighbour lists of destinations first, first + 1, ... One-sided. After each chunk
    yields the number of edges written.

    Args:
        structure: the structure to write to.
        first: user id of the first destination.
        indptr: [n + 1] int64, from 0; on the CPU or the device.
        indices: [E] users' ids of the sources, int32 or int64.
        edge_begin: position of the first of these edges in the user's CSC.
    """
    device, views = structure.device, structure.write_views()
    launch = launch_on(device, num_threads=threads_of_rank(structure.world_size))
    for begin, end in _chunks(indptr):
        edge_from, edge_to = int(indptr[begin]), int(indptr[end])
        near_indptr = (indptr[begin : end + 1] - edge_from).to(device)
        near_indices = indices[edge_from:edge_to].to(device)
        chunk = _C.ListChunk(
            first=first + begin,
            indptr=near_indptr,
            indices=near_indices,
            edge_begin=edge_begin + edge_from,
        )
        for view in views:
            _C.scatter_lists(
                view,
                chunk,
                destinations.internal_view,
                sources.internal_view,
                launch,
            )
        _write_distant(
            structure,
            first + begin,
            near_indptr,
            near_indices,
            edge_begin + edge_from,
            destinations,
            sources,
        )
        yield edge_to - edge_from


def _write_distant(
    structure: TieredCsc,
    first: int,
    indptr: Tensor,
    indices: Tensor,
    edge_begin: int,
    destinations: IdMap,
    sources: IdMap,
) -> None:
    """Writes lists to the copies that this rank's GPU does not reach; see
    :mod:`peergraph.memory.table.distant_rows`. Arguments as in :func:`write_lists`.
    """
    far = list(structure.distant_views())
    if not far:
        return
    rows = torch.arange(first, first + indptr.numel() - 1, device=structure.device)
    for order in (destinations.to_internal, structure.order):
        rows = rows if order is None or order.rows == 0 else order.as_tensor()[rows.long()]
    if sources.to_internal is not None and sources.to_internal.rows:
        indices = sources.to_internal.as_tensor()[indices.long()]
    near = [rows.cpu(), indptr.cpu(), indices.cpu()]
    for device, view in far:
        rows, indptr, indices = (tensor.to(device) for tensor in near)
        chunk = _C.ListChunk(first=0, indptr=indptr, indices=indices, edge_begin=edge_begin)
        launch = launch_on(device, num_threads=threads_of_rank(structure.world_size))
        _C.scatter_lists(view, chunk, _C.IdMapView(rows), _C.IdMapView(), launch)
        wait_for(device)


def read_lists(
    structure: TieredCsc, destinations: IdMap, sources: IdMap
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the user's CSC in chunks: (degrees [n], source ids [edges] int64) on the CPU.
    One-sided; synchronises.
    """
    degrees = read_degrees(structure, destinations)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), degrees.cumsum(0)])
    device = structure.device
    for begin, end in _chunks(indptr):
        near_indptr = (indptr[begin : end + 1] - indptr[begin]).to(device)
        ids = torch.empty(int(indptr[end] - indptr[begin]), dtype=torch.int64, device=device)
        chunk = _C.ListChunk(
            first=begin,
            indptr=near_indptr,
            indices=ids,
        )
        _C.gather_lists(
            structure.view,
            chunk,
            destinations.internal_view,
            sources.user_view,
            launch_on(device),
        )
        yield degrees[begin:end], ids.cpu()


def read_positions(
    structure: TieredCsc,
    indptr: Tensor,
    begin: int,
    end: int,
    destinations: IdMap,
    sources: IdMap,
) -> Tensor:
    """Returns the sources at positions begin..end of the user's CSC, of the structure's dtype on
    its device. One-sided; reads whole lists.

    Args:
        indptr: [destinations + 1] the offsets of all lists, on the CPU.
    """
    ends = torch.tensor([begin, end], dtype=torch.int64, device="cpu")
    first = int(torch.searchsorted(indptr, ends[:1], right=True)) - 1
    last = int(torch.searchsorted(indptr, ends[1:]))
    offsets = indptr[first : last + 1] - indptr[first]
    ids = torch.empty(int(offsets[-1]), dtype=structure.index_dtype, device=structure.device)
    chunk = _C.ListChunk(first=first, indptr=offsets.to(structure.device), indices=ids)
    _C.gather_lists(
        structure.view,
        chunk,
        destinations.internal_view,
        sources.user_view,
        launch_on(structure.device, num_threads=threads_of_rank(structure.world_size)),
    )
    skipped = begin - int(indptr[first])
    return ids[skipped : skipped + end - begin]


class CscRange(NamedTuple):
    """Some destinations of a relation with their in-neighbours, in the users' order and ids."""

    indptr: Tensor
    """``[destinations + 1]`` int64, from 0."""
    indices: Tensor
    """``[edges]`` ids of the sources, int32 where all fit, else int64."""
    edge_ids: Tensor
    """``[edges]`` int64 ids of the edges."""


def read_range(
    structure: TieredCsc, start: int, stop: int | None, destinations: IdMap, sources: IdMap
) -> CscRange:
    """Returns the lists of destinations start .. stop - 1, on the structure's device. One-sided;
    synchronises once, for the number of edges. Raises the errors of :meth:`Store.read_csc`.
    """
    count = structure.num_destinations
    stop = count if stop is None else stop
    for name, bound in (("start", start), ("stop", stop)):
        if isinstance(bound, bool) or not hasattr(bound, "__index__"):
            raise TypeError(f"{name} must be an int, got {bound!r}")
    if not 0 <= start <= stop <= count:
        raise ValueError(
            f"start and stop must be a range within the {count} destinations, "
            f"got {start} and {stop}"
        )
    device = structure.device
    degrees = _degrees(structure, start, stop - start, destinations)
    indptr = torch.zeros(stop - start + 1, dtype=torch.int64, device=device)
    torch.cumsum(degrees, 0, out=indptr[1:])
    num_edges = int(indptr[-1])
    indices = torch.empty(num_edges, dtype=structure.index_dtype, device=device)
    edge_ids = torch.empty(num_edges, dtype=torch.int64, device=device)
    chunk = _C.ListChunk(
        first=start,
        indptr=indptr,
        indices=indices,
        edge_ids=edge_ids,
    )
    _C.gather_lists(
        structure.view,
        chunk,
        destinations.internal_view,
        sources.user_view,
        launch_on(device),
    )
    return CscRange(indptr, indices, edge_ids)


def read_degrees(structure: TieredCsc, destinations: IdMap) -> Tensor:
    """Returns the in-degrees by user id: [destinations] int64 on the CPU. One-sided;
    synchronises.
    """
    return _degrees(structure, 0, structure.num_destinations, destinations).cpu()


def _degrees(structure: TieredCsc, first: int, count: int, destinations: IdMap) -> Tensor:
    """Returns the in-degrees of first, first + 1, ... by user id: [count] int64 on the device."""
    degrees = torch.empty(count, dtype=torch.int64, device=structure.device)
    _C.degrees(
        structure.view,
        first,
        destinations.internal_view,
        degrees,
        launch_on(structure.device),
    )
    return degrees


def read_edge_index(structure: TieredCsc, to_user: IdMap, from_user: IdMap) -> Tensor:
    """Returns sources and destinations, in the order of the edge ids: ``[2, E]`` int64 on the CPU.

    Args:
        structure: the structure to read.
        to_user: the renumbering of destinations.
        from_user: the renumbering of sources.
    """
    out = torch.empty((2, structure.num_edges), dtype=torch.int64, device="cpu")
    first, at = 0, 0
    for degrees, sources in read_lists(structure, to_user, from_user):
        piece = slice(at, at + sources.numel())
        nodes = torch.arange(first, first + degrees.numel(), device="cpu")
        out[0, piece] = sources
        out[1, piece] = nodes.repeat_interleave(degrees)
        first, at = first + degrees.numel(), piece.stop
    if structure.edge_ids is None:
        return out
    edge_ids = structure.edge_ids.read().long()
    return torch.empty_like(out).index_copy_(1, edge_ids, out)


def _chunks(indptr: Tensor) -> Iterator[tuple[int, int]]:
    """Yields ranges of destinations with at most _CHUNK_EDGES edges, or with one destination."""
    begin, count = 0, indptr.numel() - 1
    while begin < count:
        reach = int(indptr[begin]) + _CHUNK_EDGES
        end = int(torch.searchsorted(indptr, reach, right=True)) - 1
        end = min(max(end, begin + 1), count, begin + _CHUNK_EDGES)
        yield begin, end
        begin = end
