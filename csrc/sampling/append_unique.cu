#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/tabulate_output_iterator.h>

#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "sampling/append_unique.h"
#include "sampling/node_index.cuh"

namespace peergraph {
namespace {

/// The target whose slot this is.
__device__ __forceinline__ int64_t owner(const Hop& hop, uint32_t slot) {
  return hop.stride > 0 ? slot / static_cast<uint32_t>(hop.stride) : hop.owners[slot];
}

/// The tree of the slot's edge; the owner is looked up only if there are several trees.
__device__ __forceinline__ int64_t tree_of(const Hop& hop, uint32_t slot) {
  return hop.target_trees == nullptr ? 0 : hop.target_trees[owner(hop, slot)];
}

/// Is this slot the first of a new node? Safe beside AppendNode: it replaces the word of a slot
/// only after that slot was tested, and what it writes is nobody's slot.
template <bool kDirect>
struct IsFirst {
  Hop hop;
  NodeIndex index;

  __device__ bool operator()(uint32_t slot) const {
    const int64_t node = load_id(hop.sources, hop.index_bytes, slot);
    const bool used = node >= 0;
    if constexpr (kDirect) {
      // No branch between the loads, so that those of several slots run at once.
      const uint32_t word = index.direct[used ? node : 0];
      return used & (word == (kPending | slot));
    } else {
      return used && index.get(tree_of(hop, slot), node) == (kPending | slot);
    }
  }
};

/// Gives the i-th new node, the one of `slot`, its row.
struct AppendNode {
  Hop hop;
  NodeList nodes;

  __device__ void operator()(int64_t i, uint32_t slot) const {
    const int64_t node = load_id(hop.sources, hop.index_bytes, slot);
    const int64_t tree = tree_of(hop, slot);
    const int64_t row = nodes.count + (nodes.found == nullptr ? 0 : *nodes.found) + i;
    if (row >= nodes.capacity) {  // of a fixed shape: the node is left out
      nodes.index.set(tree, node, kUnknown);
      return;
    }
    nodes.ids[row] = node;
    if (nodes.trees != nullptr) nodes.trees[row] = static_cast<int32_t>(tree);
    nodes.index.set(tree, node, static_cast<uint32_t>(row));
  }
};

cudaError_t scan(void* scratch, size_t& bytes, const Hop& hop, cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(scratch, bytes, hop.offsets, hop.offsets,
                                       hop.num_targets + 1, stream);
}

template <bool kDirect>
cudaError_t select_first(void* scratch, size_t& bytes, const Hop& hop, const NodeList& nodes,
                         cudaStream_t stream) {
  return cub::DeviceSelect::If(scratch, bytes, thrust::counting_iterator<uint32_t>(0),
                               thrust::make_tabulate_output_iterator(AppendNode{hop, nodes}),
                               hop.offsets + hop.num_targets + 1, hop.slots,
                               IsFirst<kDirect>{hop, nodes.index}, stream);
}

cudaError_t select(void* scratch, size_t& bytes, const Hop& hop, const NodeList& nodes,
                   cudaStream_t stream) {
  return nodes.index.direct != nullptr ? select_first<true>(scratch, bytes, hop, nodes, stream)
                                       : select_first<false>(scratch, bytes, hop, nodes, stream);
}

__global__ void __launch_bounds__(kBlockThreads)
    add_seeds_kernel(const IdMapView to_internal, int64_t num_nodes, const int64_t* seeds,
                     int64_t count, int64_t first_tree, const NodeList nodes, uint64_t seed_rank,
                     unsigned long long* first_bad) {
  for (int64_t i = global_thread(); i < count; i += grid_threads()) {
    int64_t id = seeds[i];
    if (id < 0 || id >= num_nodes) {
      atomicMin(first_bad, static_cast<unsigned long long>(seed_rank + i));
      id = 0;
    }
    const int64_t node = to_internal(id), row = nodes.count + i;
    const int64_t tree = nodes.trees == nullptr ? 0 : first_tree + i;
    nodes.ids[row] = node;
    if (nodes.trees != nullptr) nodes.trees[row] = static_cast<int32_t>(tree);
    claim(nodes.index, tree, node, static_cast<uint32_t>(row));
  }
}

__global__ void __launch_bounds__(kBlockThreads) reindex_kernel(const NodeList nodes) {
  for (int64_t row = global_thread(); row < nodes.count; row += grid_threads())
    claim(nodes.index, nodes.tree(row), nodes.ids[row], static_cast<uint32_t>(row));
}

__global__ void __launch_bounds__(kBlockThreads)
    write_edges_kernel(const Hop hop, const NodeIndex sources, const EdgeOutput out) {
  for (int64_t slot = global_thread(); slot < hop.slots; slot += grid_threads()) {
    const int64_t node = load_id(hop.sources, hop.index_bytes, slot);
    if (node < 0) continue;
    const int64_t target = owner(hop, static_cast<uint32_t>(slot));
    const int64_t within = hop.stride > 0 ? hop.offsets[target] + slot - target * hop.stride : slot;
    if (within >= out.room) continue;
    const int64_t edge = out.begin + within;
    const uint32_t word = sources.get(hop.tree(target), node);
    const bool known = (word & kPending) == 0;
    const int64_t row = known ? word : out.sink;
    store_id(out.row, out.index_bytes, edge, row);
    store_id(out.col, out.index_bytes, edge, hop.first_target + target);
    if (out.edge_ids != nullptr) out.edge_ids[edge] = hop.edge_ids[slot];
    if (out.duplicates != nullptr && known) atomicAdd(out.duplicates + row, 1);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    write_nodes_kernel(const IdMapView to_user, const NodeList nodes, int64_t* ids,
                       int64_t* batch) {
  for (int64_t row = global_thread(); row < nodes.count; row += grid_threads()) {
    const int64_t node = nodes.ids[row];
    const bool padding = node < 0;
    ids[row] = padding ? -1 : to_user(node);
    if (batch != nullptr) batch[row] = nodes.trees[row];
    if (nodes.index.direct != nullptr && !padding) nodes.index.direct[node] = kUnknown;
  }
}

cudaStream_t as_stream(uintptr_t address) { return reinterpret_cast<cudaStream_t>(address); }

}  // namespace

int64_t scan_offsets_scratch(const Hop& hop, uintptr_t stream) {
  size_t bytes = 0;
  PG_CUDA_CHECK(scan(nullptr, bytes, hop, as_stream(stream)));
  return static_cast<int64_t>(bytes);
}

void scan_offsets_cuda(const Hop& hop, void* scratch, int64_t scratch_bytes, uintptr_t stream) {
  size_t bytes = static_cast<size_t>(scratch_bytes);
  PG_CUDA_CHECK(scan(scratch, bytes, hop, as_stream(stream)));
}

int64_t append_unique_scratch(const Hop& hop, const NodeList& nodes, uintptr_t stream) {
  size_t bytes = 0;
  PG_CUDA_CHECK(select(nullptr, bytes, hop, nodes, as_stream(stream)));
  return std::max(static_cast<int64_t>(bytes), scan_offsets_scratch(hop, stream));
}

void append_unique_cuda(const Hop& hop, const NodeList& nodes, void* scratch, int64_t scratch_bytes,
                        uintptr_t stream) {
  if (hop.stride > 0) scan_offsets_cuda(hop, scratch, scratch_bytes, stream);
  size_t bytes = static_cast<size_t>(scratch_bytes);
  PG_CUDA_CHECK(select(scratch, bytes, hop, nodes, as_stream(stream)));
}

void add_seeds_cuda(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                    const NodeList& nodes, uint64_t seed_rank, uint64_t* first_bad,
                    uintptr_t stream) {
  add_seeds_kernel<<<grid_for(seeds.count), kBlockThreads, 0, as_stream(stream)>>>(
      type.to_internal, type.num_nodes, seeds.ids, seeds.count, first_tree, nodes, seed_rank,
      reinterpret_cast<unsigned long long*>(first_bad));
  PG_LAUNCH_CHECK("add_seeds_kernel");
}

void reindex_cuda(const NodeList& nodes, uintptr_t stream) {
  reindex_kernel<<<grid_for(nodes.count), kBlockThreads, 0, as_stream(stream)>>>(nodes);
  PG_LAUNCH_CHECK("reindex_kernel");
}

void write_edges_cuda(const Hop& hop, const NodeIndex& sources, const EdgeOutput& out,
                      uintptr_t stream) {
  write_edges_kernel<<<grid_for(hop.slots), kBlockThreads, 0, as_stream(stream)>>>(hop, sources,
                                                                                   out);
  PG_LAUNCH_CHECK("write_edges_kernel");
}

void write_nodes_cuda(const NodeTypeSpec& type, const NodeList& nodes, const NodesResult& out,
                      uintptr_t stream) {
  write_nodes_kernel<<<grid_for(nodes.count), kBlockThreads, 0, as_stream(stream)>>>(
      type.to_user, nodes, out.ids, out.batch);
  PG_LAUNCH_CHECK("write_nodes_kernel");
}

}  // namespace peergraph
