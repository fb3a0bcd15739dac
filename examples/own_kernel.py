"""A CUDA kernel of your own over the store: the mean of the features of each node's in-neighbours.

python examples/own_kernel.py

Features are read where they lie (this GPU, other GPUs, host memory) and never gathered into a
matrix. Needs a GPU and CuPy (`pip install peergraph[cupy]`).
"""

from __future__ import annotations

import torch

import peergraph
from peergraph.aggregate import Csc, g_spmm
from peergraph.memory import cupy_stream, table_argument
from peergraph.store import EdgeSource, GraphSource, Store, graph_argument

NODES, EDGES, WIDTH = 10_000, 200_000, 64

KERNEL = r"""
#include <peergraph.cuh>

using namespace peergraph;

// A warp takes a node, a lane every 32nd feature.
extern "C" __global__ void mean_of_neighbors(const __grid_constant__ GraphView graph,
                                             const __grid_constant__ TableView table,
                                             float* out, int width) {
  const int64_t node = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
  if (node >= graph.num_nodes()) return;
  const NeighborList from = neighbors(graph, node);
  for (int f = threadIdx.x % 32; f < width; f += 32) {
    float sum = 0;
    for (int64_t i = 0; i < from.size(); ++i) sum += features<float>(table, from[i])[f];
    out[node * width + f] = from.size() ? sum / from.size() : 0;
  }
}
"""


def missing() -> str | None:
    """What this machine lacks to run the kernel."""
    try:
        import cupy  # noqa: F401
    except ImportError:
        return "CuPy is not installed: pip install peergraph[cupy]"
    if peergraph.num_gpus() == 0:
        return "no GPU, or peergraph was built without its CUDA part"
    return None


def mean_of_neighbors(store: Store) -> torch.Tensor:
    """[nodes, width]: compiles the kernel (once; CuPy caches it) and runs it in torch's stream."""
    import cupy

    options = ("-std=c++17", f"-I{peergraph.include_path()}")
    kernel = cupy.RawKernel(KERNEL, "mean_of_neighbors", options)
    table = store.node_table("x")
    out = torch.empty((store.num_nodes(), WIDTH), device=store.device)
    with cupy_stream(store.device):
        kernel(
            (-(-store.num_nodes() * 32 // 256),),
            (256,),
            (graph_argument(store), table_argument(table), cupy.asarray(out), cupy.int32(WIDTH)),
        )
    return out


def main() -> None:
    if (reason := missing()) is not None:
        print(f"nothing to run: {reason}")
        return
    torch.manual_seed(0)
    edges = torch.randint(NODES, (2, EDGES))
    x = torch.randn(NODES, WIDTH)
    source = GraphSource.homogeneous(NODES, EdgeSource(coo=edges), {"x": x})
    with Store.build(source, plan="sharded") as store:
        means = mean_of_neighbors(store)
        csc = Csc.from_edge_index(edges.to(store.device), NODES, NODES)
        expected = g_spmm(csc, "copy_u", "mean", x=x.to(store.device))
        torch.testing.assert_close(means, expected, rtol=1e-4, atol=1e-5)
    print(f"means of {NODES} nodes over {EDGES} edges: as peergraph.aggregate has them")


if __name__ == "__main__":
    main()
