"""Index tensors: checks, and conversions between edges (COO), offsets (CSR) and the transpose."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import CsrTensors, launch_on
from peergraph.aggregate.kernels.torch_operator import is_traced, kernel
from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.device.default_machine import WORK
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.table.id_list import check_distinct, integers
from peergraph.number_arguments import check_number

_ID_DTYPES = (torch.int32, torch.int64)


def _fake_transpose(
    indptr: Tensor, indices: Tensor, num_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        indptr.new_empty(num_columns + 1),
        torch.empty_like(indices),
        torch.empty_like(indices, dtype=indptr.dtype),
    )


@kernel(_fake_transpose)
def transpose_rows(
    indptr: Tensor, indices: Tensor, num_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns indptr, indices and positions of the transpose.

    The edges of a row are in the order of their positions in the given matrix.
    """
    if indices.device.type == "cpu":
        transpose = _fake_transpose(indptr, indices, num_columns)
        matrix = CsrTensors(indptr.contiguous(), indices.contiguous(), None, num_columns, 0)
        by_column, rows, positions = transpose
        _C.transpose(matrix.native(), indptr=by_column, indices=rows, positions=positions)
        return transpose
    rows = row_of_edges(indptr, indices.numel(), indices.dtype)
    return group_by(indices, rows, num_columns, indptr.numel() - 1, indptr.dtype)


def group_by_column(
    matrix: CsrTensors,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns indptr, rows and edge ids of the transpose, all int32; no operator of torch.

    Does not sort and does not synchronise. On a GPU, the edges of a column are in no fixed order.

    Args:
        matrix: of fewer than 2^31 rows and edges.
    """
    native, launch = matrix.native(), launch_on(matrix.indptr.device)

    def empty(count: int) -> Tensor:
        return matrix.indptr.new_empty(count, dtype=torch.int32)

    indptr = matrix.indptr.new_zeros(matrix.num_columns + 1, dtype=torch.int32)
    counts = torch.zeros_like(indptr[1:])
    ranks, rows, edge_ids = (empty(matrix.num_edges) for _ in range(3))
    _C.rank_edges(native, counts=counts, ranks=ranks, launch=launch)
    torch.cumsum(counts, 0, dtype=torch.int32, out=indptr[1:])
    _C.place_edges(native, indptr=indptr, ranks=ranks, rows=rows, edge_ids=edge_ids, launch=launch)
    return indptr, rows, edge_ids


def row_of_edges(indptr: Tensor, num_edges: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Returns the row of each edge, [edges]. Does not synchronise."""
    rows = torch.arange(indptr.numel() - 1, dtype=dtype, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)


def group_by(
    keys: Tensor, values: Tensor, num_keys: int, num_values: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorts edges (values[e], keys[e]) by key, stably.

    Returns:
        [num_keys + 1] offsets of each key's edges, of `dtype`; the values in their new order, of
        their own dtype; the old position of each edge, of `dtype`.
    """
    if keys.device.type == "cpu":
        keys, values = keys.contiguous(), values.contiguous()
        indptr = torch.empty(num_keys + 1, dtype=torch.int64, device=keys.device)
        indices = torch.empty_like(values)
        order = torch.empty(keys.numel(), dtype=torch.int64, device=keys.device)
        _C.coo_to_csc(values, keys, num_values, num_keys, indptr, indices, order)
        return indptr.to(dtype), indices, order.to(dtype)
    ordered, order = torch.sort(keys, stable=True)
    return indptr_from_sorted(ordered, num_keys, dtype), values[order], order.to(dtype)


def are_few_keys(bound: int, num_edges: int) -> bool:
    """Returns whether a number for each key below `bound` takes less time than a sort of edges."""
    return bound <= WORK.few_keys + WORK.keys_per_edge * num_edges


def distinct(keys: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Returns the distinct keys, below `bound`, in ascending order, and each key's place in them,
    int32 if that is enough.

    Synchronises with a GPU.
    """
    dtype = torch.int32 if keys.shape[0] < 2**31 - 1 else torch.int64
    if not are_few_keys(bound, keys.shape[0]):
        distinct, places = torch.unique(keys, return_inverse=True)
        return distinct, places.to(dtype)
    flags = torch.zeros(bound, dtype=torch.bool, device=keys.device)
    flags.index_fill_(0, keys, True)
    distinct = flags.nonzero().flatten()
    places = torch.cumsum(flags, 0, dtype=dtype)
    return distinct, places[keys].sub_(1)


def cuts_of(ordered: Tensor, starts: Sequence[int]) -> Tensor:
    """Returns how many of the ordered keys are below each start."""
    return torch.searchsorted(ordered, on_device(starts, ordered.device))


def on_device(
    numbers: Sequence[int] | Sequence[Sequence[int]],
    device: torch.device,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Returns numbers of the host as a tensor on a device, without waiting for a GPU.

    CUDA copies them aside before the call returns. A CUDA graph would read them again when it is
    replayed: torch raises its error for such a copy while one is captured.
    """
    on_host = torch.tensor(numbers, dtype=dtype, device="cpu")
    return on_host.to(device, non_blocking=not is_capturing(device))


def is_arange(ids: Tensor) -> bool:
    """Returns whether contiguous int32 or int64 `ids` are 0, 1, 2, ... Synchronises."""
    if ids.device.type == "cpu":
        return _C.is_arange(ids)
    return torch.equal(ids, torch.arange(ids.numel(), dtype=ids.dtype, device=ids.device))


def indptr_if_sorted(keys: Tensor, num_keys: int) -> Tensor | None:
    """Returns the offsets of each key, [num_keys + 1] of the keys' dtype; None for unsorted keys.

    Synchronises.

    Raises:
        IndexError: on the CPU, a key out of range.
    """
    if keys.device.type != "cpu" or torch.compiler.is_compiling():
        is_sorted = bool((keys[1:] >= keys[:-1]).all())
        return indptr_from_sorted(keys.contiguous(), num_keys, keys.dtype) if is_sorted else None
    keys, indptr = keys.contiguous(), keys.new_empty(num_keys + 1)
    return indptr if _C.indptr_from_sorted(keys, num_keys=num_keys, indptr=indptr) else None


def indptr_from_sorted(ordered: Tensor, num_keys: int, dtype: torch.dtype) -> Tensor:
    """Returns the offsets of each key in sorted keys, [num_keys + 1] of `dtype`."""
    narrow = dtype == torch.int32
    bounds = torch.arange(num_keys + 1, dtype=ordered.dtype, device=ordered.device)
    return torch.searchsorted(ordered, bounds, out_int32=narrow)


def checked_copies(
    indptr: Tensor,
    indices: Tensor,
    num_sources: int,
    edge_ids: Tensor | None,
    duplicate_counts: Tensor | None,
    num_nonisolated: int | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns copies of the tensors of a CSC structure, whose values are verified. Synchronises.

    The arguments and errors are those of :class:`peergraph.aggregate.Csc`.
    """
    indices = check_ids("indices", indices).clone()
    indptr = check_ids("indptr", indptr, indices.device).clone()
    check_size("num_sources", num_sources)
    count = indptr.numel() - 1
    if num_nonisolated is not None and not 0 <= num_nonisolated <= count:
        raise ValueError(f"num_nonisolated must be 0 to {count} destinations, "
                         f"got {num_nonisolated}")  # fmt: skip
    check_offsets(indptr, indices.numel(), num_nonisolated)
    check_range("indices", indices, num_sources, "sources")
    if edge_ids is not None:
        edge_ids = check_ids("edge_ids", edge_ids, indices.device, indices.numel()).clone()
        check_distinct("edge_ids", edge_ids, indices.numel(), "edges")
    if duplicate_counts is not None:
        check_counts(duplicate_counts, num_sources, indices.device)
        duplicate_counts = duplicate_counts.clone()
        check_enough_counts(duplicate_counts, indices)
    return indptr, indices, edge_ids, duplicate_counts


def check_ids(
    name: str,
    ids: Tensor,
    device: torch.device | None = None,
    count: int | None = None,
    dimensions: int = 1,
) -> Tensor:
    """Returns the ids, after checks of all but their values; empty ids may have any dtype.

    Args:
        device, count: the expected device and number of ids; None: any.
        dimensions: the expected number of dimensions, 1 or 2.
    """
    if not (isinstance(ids, Tensor) and is_traced()):
        ids = plain(name, ids)
    if ids.dtype not in _ID_DTYPES:
        ids = integers(ids)
    if ids.dtype not in _ID_DTYPES:
        raise TypeError(f"{name} must be int32 or int64, got {ids.dtype}")
    if ids.dim() != dimensions:
        words = "one dimension" if dimensions == 1 else "two dimensions"
        raise ValueError(f"{name} must have {words}, got {list(ids.shape)}")
    if device is not None and ids.device != device:
        raise ValueError(f"{name} must be on {device}, got {ids.device}")
    if count is not None and ids.numel() != count:
        raise ValueError(f"{name} must have {count} items, got {ids.numel()}")
    return ids


def is_edge_index(edges: Tensor, device: torch.device) -> bool:
    """Returns whether edges are a plain [2, edges] tensor of int32 or int64 on a device, for which
    :func:`check_ids` has nothing to say. The compiled module verifies that it has memory.
    """
    return (
        type(edges) is Tensor
        and edges.dtype in _ID_DTYPES
        and edges.device == device
        and edges.layout is torch.strided
        and edges.dim() == 2
        and edges.shape[0] == 2
    )


def check_size(name: str, size: int) -> None:
    """Raises TypeError or ValueError unless `size` is an integer that is not negative."""
    check_number(name, size, 0, 2**63 - 1)


def check_offsets(indptr: Tensor, num_edges: int, num_nonisolated: int | None) -> None:
    """Raises ValueError unless `indptr` rises from 0 to `num_edges`.

    With `num_nonisolated`, it must have reached `num_edges` at that row. Synchronises.
    """
    if indptr.numel() == 0:
        raise ValueError("indptr must have at least one offset, got none")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0 or last != num_edges:
        raise ValueError(f"indptr must run from 0 to {num_edges} edges, got {first} to {last}")
    falling = (indptr[1:] < indptr[:-1]).nonzero()
    if falling.numel():
        raise ValueError(f"indptr must not fall, it does after position {int(falling[0])}")
    if num_nonisolated is not None and int(indptr[num_nonisolated]) != num_edges:
        begun = int(indptr[num_nonisolated])
        raise ValueError(
            f"num_nonisolated is {num_nonisolated}, but later destinations have "
            f"{num_edges - begun} edges"
        )


def check_counts(duplicate_counts: Tensor, num_sources: int, device: torch.device) -> None:
    """Raises TypeError or ValueError unless these are int32 [num_sources] on `device`."""
    check_ids("duplicate_counts", duplicate_counts, device, num_sources)
    if duplicate_counts.dtype != torch.int32:
        raise TypeError(f"duplicate_counts must be int32, got {duplicate_counts.dtype}")


def check_enough_counts(duplicate_counts: Tensor, indices: Tensor) -> None:
    """Raises ValueError for the first source that occurs more often than its count."""
    counts = torch.bincount(indices, minlength=duplicate_counts.numel())
    more = (counts > duplicate_counts).nonzero()
    if more.numel():
        source = int(more[0])
        raise ValueError(
            f"duplicate_counts[{source}] must be at least {int(counts[source])}, as often as the "
            f"source occurs, got {int(duplicate_counts[source])}"
        )


def check_range(name: str, ids: Tensor, limit: int, what: str) -> int:
    """Returns the largest id, or -1 if there is none. Synchronises.

    Raises:
        IndexError: the first id out of range.
    """
    if ids.numel() == 0:
        return -1
    low, high = map(int, torch.aminmax(ids))
    if low >= 0 and high < limit:
        return high
    bad = int(((ids < 0) | (ids >= limit)).nonzero()[0])
    raise IndexError(f"{name}[{bad}] = {int(ids[bad])} is out of range for {limit} {what}")
