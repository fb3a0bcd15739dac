"""The operators of GraphBolt's native library that its Python code calls, written in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.sampling import next_seed

_ADD = "FRAGMENT"
_ANY_DEVICE = "CompositeExplicitAutograd"

# The generator that gb.seed() made; None before: torch's default generator.
_generator: torch.Generator | None = None
_library: torch.library.Library | None = None


def define_missing() -> None:
    """Defines the operators that the native library did not define. Idempotent."""
    global _library
    library = _library
    if library is None:
        library = torch.library.Library("graphbolt", _ADD)  # type: ignore[no-untyped-call]
        _library = library  # Operators live as long as their library object.
    for schema, function in _OPERATORS.items():
        name = schema.split("(")[0]
        if not hasattr(torch.ops.graphbolt, name):
            library.define(schema)  # type: ignore[no-untyped-call]
            library.impl(name, function, _ANY_DEVICE)  # type: ignore[no-untyped-call]


def next_graphbolt_seed() -> int:
    """Draws a seed for the core from the generator of ``gb.seed``, else from torch's."""
    return next_seed(_generator)


def set_seed(seed: int) -> None:
    global _generator
    _generator = torch.Generator().manual_seed(seed)


def set_max_uva_threads(count: int) -> None:
    """Has no effect: no kernel reads pinned memory."""


def isin(elements: Tensor, test_elements: Tensor) -> Tensor:
    return torch.isin(elements, test_elements)


def index_select(tensor: Tensor, index: Tensor) -> Tensor:
    """Selects rows, on the device of the index."""
    return tensor.index_select(0, index.to(tensor.device)).to(index.device)


def expand_indptr(
    indptr: Tensor,
    dtype: torch.dtype,
    node_ids: Tensor | None = None,
    output_size: int | None = None,
) -> Tensor:
    if node_ids is None:
        node_ids = torch.arange(indptr.numel() - 1, device=indptr.device)
    counts = indptr.diff().long()
    return node_ids.to(dtype).repeat_interleave(counts, output_size=output_size)


def unique_and_compact(
    src_ids: Tensor, dst_ids: Tensor, unique_dst_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers nodes: destinations as given, then sources by first appearance.

    Args:
        src_ids: [S] source nodes.
        dst_ids: [D] destination nodes, all in `unique_dst_ids`.
        unique_dst_ids: [U] destination nodes without duplicates.

    Returns:
        The nodes, and the positions of `src_ids` and of `dst_ids` among them.
    """
    ids = torch.cat([unique_dst_ids, src_ids])
    ascending, inverse = torch.unique(ids, return_inverse=True)
    positions = torch.arange(ids.numel(), device=ids.device)
    first = torch.full_like(ascending, ids.numel(), dtype=torch.int64)
    first = first.scatter_reduce(0, inverse, positions, "amin")
    order = first.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=ids.device)
    dtype = src_ids.dtype
    src = rank[inverse[unique_dst_ids.numel() :]].to(dtype)
    dst = rank[torch.searchsorted(ascending, dst_ids)].to(dtype)
    return ascending[order], src, dst


def _missing(what: str, instead: str) -> Callable[..., Any]:
    def raise_error(*args: Any) -> Any:
        raise NotImplementedError(
            f"{what} needs GraphBolt's native library, which this DGL does not have for torch "
            f"{torch.__version__}: {instead}"
        )

    return raise_error


_GRAPH = "use peergraph_dgl.graphbolt.SamplingGraph(store_of(share(g)))"

_OPERATORS: dict[str, Callable[..., Any]] = {
    "set_seed(int seed) -> ()": set_seed,
    "set_max_uva_threads(int count) -> ()": set_max_uva_threads,
    "isin(Tensor elements, Tensor test_elements) -> Tensor": isin,
    "index_select(Tensor input, Tensor index) -> Tensor": index_select,
    "expand_indptr(Tensor indptr, ScalarType dtype, Tensor? node_ids, SymInt? output_size)"
    " -> Tensor": expand_indptr,
    "unique_and_compact(Tensor src_ids, Tensor dst_ids, Tensor unique_dst_ids)"
    " -> (Tensor, Tensor, Tensor)": unique_and_compact,
    "fused_csc_sampling_graph(Tensor indptr, Tensor indices, Tensor? node_type_offset, "
    "Tensor? type_per_edge, Dict(str, int)? node_type_to_id, Dict(str, int)? edge_type_to_id, "
    "Dict(str, Tensor)? node_attributes, Dict(str, Tensor)? edge_attributes) -> Tensor": _missing(
        "FusedCSCSamplingGraph (fused_csc_sampling_graph, from_dglgraph)", _GRAPH
    ),
    "load_from_shared_memory(str name) -> Tensor": _missing("load_from_shared_memory", _GRAPH),
    "gpu_cache(int[] shape, ScalarType dtype) -> Tensor": _missing(
        "GPUCachedFeature", "the plan of a peergraph Store places rows on the GPUs"
    ),
}
