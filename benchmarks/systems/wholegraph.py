"""NVIDIA WholeGraph (pylibwholegraph) on the same graphs, tables and seeds; optional."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import random
from dataclasses import dataclass
from typing import Any

import torch
from inputs.arrays import fill_features
from inputs.graphs import GraphSpec, fill_indices, make_indptr

# Rows of a host table filled at a time.
_HOST_CHUNK_BYTES = 512 << 20


def load(rank: int, world: int, device: torch.device) -> tuple[WholeGraph | None, str | None]:
    """Initialises the library on this rank; None and the reason where that is not possible."""
    if device.type != "cuda":
        return None, "it runs on GPUs only"
    if importlib.util.find_spec("pylibwholegraph") is None:
        return None, "pylibwholegraph is not installed"
    try:
        _load_libraries()
        import pylibwholegraph.torch as library

        library.init(rank, world, rank, world, "warn")
        # Its sampler takes its seeds from here.
        random.seed(rank)
    except Exception as error:
        return None, f"it does not load: {type(error).__name__}: {error}"
    return WholeGraph(library, device), None


def _load_libraries() -> None:
    """Loads what libwholegraph.so needs by name; libraft and rmm's Python part are not needed."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        _load_library(name, glob.glob(f"/usr/local/nvidia/lib*/{name}"))
    nvidia = importlib.util.find_spec("nvidia")
    folders = nvidia.submodule_search_locations if nvidia else None
    _load_library(
        "libnccl.so.2",
        [os.path.join(folder, "nccl", "lib", "libnccl.so.2") for folder in folders or []],
    )
    import librmm
    import rapids_logger

    rapids_logger.load_library()
    librmm.load_library()


def _load_library(name: str, elsewhere: list[str]) -> None:
    for candidate in (name, *elsewhere):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return
    raise OSError(f"{name} is not found")


@dataclass
class Minibatch:
    """A sample, as WholeGraph gives it: index 0 is the layer computed first (the last hop)."""

    nodes: list[torch.Tensor]  # unique ids; [hops] are the seeds
    coo: list[torch.Tensor]  # int32 [2, edges]: source, destination
    indptr: list[torch.Tensor]
    indices: list[torch.Tensor]


class WholeGraph:
    """One rank's face of the library; every method but gather and sample is collective."""

    def __init__(self, library: Any, device: torch.device) -> None:
        self._library = library
        self._device = device
        self._communicator: Any = None

    def connect(self) -> None:
        """Makes the communicator; after torch.distributed is initialised."""
        self._communicator = self._library.get_global_communicator("nccl")
        self._library.get_local_node_communicator()

    def table(self, kind: str, location: str, rows: int, dim: int) -> Any:
        """A float32 table of the benchmark's features; kind "chunked" or "continuous"."""
        if not self._communicator.support_type_location(kind, location):
            raise NotImplementedError(f"WholeGraph has no {kind} {location} memory here")
        table = self._library.create_embedding(
            self._communicator, kind, location, torch.float32, [rows, dim]
        )
        local, begin = table.get_embedding_tensor().get_local_tensor(host_view=location == "cpu")
        if location == "cuda":
            fill_features(int(begin), local)
        else:
            step = max(1, _HOST_CHUNK_BYTES // (4 * dim))
            chunk = torch.empty(min(step, local.shape[0]), dim, device=self._device)
            for first in range(0, local.shape[0], step):
                part = local[first : first + step]
                part.copy_(fill_features(int(begin) + first, chunk[: part.shape[0]]))
        self._barrier()
        return table

    def gather(self, table: Any, ids: torch.Tensor) -> torch.Tensor:
        return table.gather(ids)

    def drop_table(self, table: Any) -> None:
        self._barrier()
        self._library.destroy_embedding(table)

    def graph(self, kind: str, spec: GraphSpec, index_dtype: torch.dtype) -> Any:
        """The graph's CSR (of in-neighbours), spread over the ranks."""
        create = self._library.create_wholememory_tensor
        nodes, edges = spec.num_nodes, spec.num_edges
        indptr = create(self._communicator, kind, "cuda", [nodes + 1], torch.int64, None)
        indices = create(self._communicator, kind, "cuda", [edges], index_dtype, None)
        local, begin = indptr.get_local_tensor(host_view=False)
        local.copy_(make_indptr(spec, self._device)[int(begin) : int(begin) + local.numel()])
        local, begin = indices.get_local_tensor(host_view=False)
        fill_indices(spec, int(begin), local)
        self._barrier()
        graph = self._library.GraphStructure()
        graph.set_csr_graph(indptr, indices)
        return graph

    def sample(self, graph: Any, seeds: torch.Tensor, fanouts: list[int]) -> Minibatch:
        """Samples, at each hop, in-neighbours of all nodes so far (as DGL's blocks)."""
        return Minibatch(*graph.multilayer_sample_without_replacement(seeds, fanouts))

    def drop_graph(self, graph: Any) -> None:
        self._barrier()
        for tensor in (graph.csr_row_ptr, graph.csr_col_ind):
            self._library.destroy_wholememory_tensor(tensor)
        graph.csr_row_ptr = graph.csr_col_ind = None

    def _barrier(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.distributed.barrier(device_ids=[self._device.index])
        torch.cuda.synchronize(self._device)
