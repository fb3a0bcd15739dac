"""GraphBolt's native operators that its Python pipelines call, on torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.sampling import next_seed

_ADD = "FRAGMENT"
_ANY_DEVICE = "CompositeExplicitAutograd"

# GraphBolt's own random state, once gb.seed() was called; else torch's.
_generator: torch.Generator | None = None
_library: torch.library.Library | None = None


def define_missing() -> None:
    """Defines the operators that no native library has; the second time there are none."""
    global _library
    library = _library
    if library is None:
        library = torch.library.Library("graphbolt", _ADD)  # type: ignore[no-untyped-call]
        _library = library  # What it defines goes with it.
    for schema, function in _OPERATORS.items():
        name = schema.split("(")[0]
        if not hasattr(torch.ops.graphbolt, name):
            library.define(schema)  # type: ignore[no-untyped-call]
            library.impl(name, function, _ANY_DEVICE)  # type: ignore[no-untyped-call]


def random_number() -> int:
    """For one sample of the core, drawn as ``gb.seed`` or ``torch.manual_seed`` says."""
    return next_seed(_generator)


def set_seed(seed: int) -> None:
    global _generator
    _generator = torch.Generator().manual_seed(seed)


def set_max_uva_threads(count: int) -> None:
    """Nothing here reads pinned memory by kernels that could be limited."""


def isin(elements: Tensor, test_elements: Tensor) -> Tensor:
    return torch.isin(elements, test_elements)


def index_select(tensor: Tensor, index: Tensor) -> Tensor:
    """The rows, on the device of the index."""
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
    """Nodes: the destinations as given, then sources by first appearance; and positions in them.

    Args:
        src_ids: [S]; dst_ids: [D], each of them among `unique_dst_ids`.
        unique_dst_ids: [U] without duplicates.
    """
    given = torch.cat([unique_dst_ids, src_ids])
    ascending, at = torch.unique(given, return_inverse=True)
    places = torch.arange(given.numel(), device=given.device)
    first = torch.full_like(ascending, given.numel(), dtype=torch.int64)
    first = first.scatter_reduce(0, at, places, "amin")
    order = first.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=given.device)
    dtype = src_ids.dtype
    src = rank[at[unique_dst_ids.numel() :]].to(dtype)
    dst = rank[torch.searchsorted(ascending, dst_ids)].to(dtype)
    return ascending[order], src, dst


def _absent(what: str, instead: str) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        raise NotImplementedError(
            f"{what} needs GraphBolt's native library, which this DGL does not have for torch "
            f"{torch.__version__}: {instead}"
        )

    return refuse


_GRAPH = "peergraph_dgl.graphbolt.StoreSamplingGraph(store_of(share(g))) gives a sampling graph"

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
    "Dict(str, Tensor)? node_attributes, Dict(str, Tensor)? edge_attributes) -> Tensor": _absent(
        "FusedCSCSamplingGraph (fused_csc_sampling_graph, from_dglgraph)", _GRAPH
    ),
    "load_from_shared_memory(str name) -> Tensor": _absent("load_from_shared_memory", _GRAPH),
    "gpu_cache(int[] shape, ScalarType dtype) -> Tensor": _absent(
        "GPUCachedFeature", "the plan of a peergraph.Store says which rows lie on the GPUs"
    ),
}
