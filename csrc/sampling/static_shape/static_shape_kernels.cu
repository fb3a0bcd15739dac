#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "memory/error_slot.h"
#include "sampling/append_unique/node_index.h"
#include "sampling/static_shape/static_shape_kernels.h"

namespace peergraph {
namespace {

__global__ void __launch_bounds__(kBlockThreads)
    add_padded_seeds_kernel(const IdMapView to_internal, int64_t num_nodes, const PaddedSeeds seeds,
                            int64_t first_tree, const NodeList nodes, int64_t* count,
                            const ErrorSlot errors) {
  const int64_t wanted = seeds.count == nullptr ? seeds.capacity : *seeds.count;
  const int64_t live = wanted < 0 ? 0 : wanted > seeds.capacity ? seeds.capacity : wanted;
  if (global_thread() == 0) {
    *count = live;
    if (live != wanted) record_bad_id(errors, 0, wanted, seeds.capacity, BadId::kSeedCount);
  }
  for (int64_t row = global_thread(); row < live; row += grid_threads()) {
    const int64_t id = seeds.ids[row];
    if (id < 0 || id >= num_nodes) {
      record_bad_id(errors, row, id, num_nodes, BadId::kSeed);
      continue;
    }
    const int64_t node = to_internal(id);
    const int64_t tree = nodes.trees == nullptr ? 0 : first_tree + row;
    nodes.ids[row] = node;
    if (nodes.trees != nullptr) nodes.trees[row] = static_cast<int32_t>(tree);
    claim(nodes.index, tree, node, with_base(nodes.index).row_word(row));
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    write_positions_kernel(const __grid_constant__ Segments segments, int32_t* positions) {
  const int64_t rows = segments.begin[segments.num_segments];
  for (int64_t row = global_thread(); row < rows; row += grid_threads()) {
    int64_t before = 0;
    int s = 0;
    for (; row >= segments.begin[s + 1]; ++s) before += segments.counts[s];
    positions[row] = static_cast<int32_t>(before + row - segments.begin[s]);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    clamp_hop_counts_kernel(const Hop hop, const int64_t* new_nodes, int hop_number, int64_t* edges,
                            int64_t edge_capacity, int64_t* found, int64_t node_capacity,
                            bool reported, const ErrorSlot errors) {
  // Only thread 0 writes the last offset, the total.
  for (int64_t t = global_thread(); t < hop.num_targets; t += grid_threads())
    if (hop.offsets[t] > edge_capacity) hop.offsets[t] = edge_capacity;
  if (global_thread() != 0) return;
  const int64_t sampled = hop.offsets[hop.num_targets];
  const int64_t nodes = *found + *new_nodes;
  if (sampled > edge_capacity) {
    if (reported) record_bad_id(errors, hop_number, sampled, edge_capacity, BadId::kEdges);
    hop.offsets[hop.num_targets] = edge_capacity;
  }
  if (reported && nodes > node_capacity)
    record_bad_id(errors, hop_number, nodes, node_capacity, BadId::kNodes);
  *edges = sampled > edge_capacity ? edge_capacity : sampled;
  *found = nodes > node_capacity ? node_capacity : nodes;
}

/// The row of a segment's padding for one of `padding` edges, which are spread evenly over it.
__device__ int64_t padding_row_of(const PaddedSegment& segment, int64_t i, int64_t padding) {
  const int64_t first = segment.begin + *segment.count;
  const int64_t rows = segment.end - first;
  return rows > 0 ? first + ((i + 1) * rows - 1) / padding : segment.padding_row;
}

__global__ void __launch_bounds__(kBlockThreads)
    pad_edges_kernel(const EdgeOutput out, const int64_t* edges, const Hop hop,
                     const PaddedSegment sources, const PaddedSegment targets) {
  const int64_t sampled = *edges;
  const int64_t padding = out.capacity - sampled;
  const int64_t first = targets.begin + *targets.count;
  const int64_t rows = targets.end - first;
  for (int64_t i = global_thread(); i < padding; i += grid_threads()) {
    const int64_t edge = out.begin + sampled + i;
    store_id(out.row, out.index_bytes, edge, padding_row_of(sources, i, padding));
    store_id(out.col, out.index_bytes, edge, padding_row_of(targets, i, padding));
    if (out.edge_ids != nullptr) out.edge_ids[edge] = out.padding_id;
  }
  for (int64_t k = 1 + global_thread(); k <= rows; k += grid_threads())
    hop.offsets[first - hop.first_target + k] = sampled + k * padding / rows;
}

// Enough threads to fill the device when they clear; nearly always they end at once.
constexpr int64_t kClearingBlocks = 1024;

__global__ void __launch_bounds__(kBlockThreads)
    clear_used_up_map_kernel(uint32_t* words, int64_t num_nodes, uint32_t num_entries) {
  if (words[num_nodes] >= num_entries) return;
  for (int64_t node = global_thread(); node < num_nodes; node += grid_threads())
    words[node] = kUnknown;
}

__global__ void lower_base_kernel(uint32_t* base, uint32_t num_entries) {
  *base = (*base < num_entries ? kUnknown : *base) - num_entries;
}

cudaStream_t as_stream(uintptr_t address) { return reinterpret_cast<cudaStream_t>(address); }

}  // namespace

void add_padded_seeds_cuda(const NodeTypeSpec& type, const PaddedSeeds& seeds, int64_t first_tree,
                           const NodeList& nodes, int64_t* count, int device, uintptr_t stream) {
  add_padded_seeds_kernel<<<grid_for(seeds.capacity), kBlockThreads, 0, as_stream(stream)>>>(
      type.to_internal, type.num_nodes, seeds, first_tree, nodes, count, error_slot(device));
  PG_LAUNCH_CHECK("add_padded_seeds_kernel");
}

void write_positions_cuda(const Segments& segments, int32_t* positions, uintptr_t stream) {
  const int64_t rows = segments.begin[segments.num_segments];
  write_positions_kernel<<<grid_for(rows), kBlockThreads, 0, as_stream(stream)>>>(segments,
                                                                                  positions);
  PG_LAUNCH_CHECK("write_positions_kernel");
}

void clamp_hop_counts_cuda(const Hop& hop, const int64_t* new_nodes, int hop_number, int64_t* edges,
                           int64_t edge_capacity, int64_t* found, int64_t node_capacity,
                           bool reported, int device, uintptr_t stream) {
  clamp_hop_counts_kernel<<<grid_for(hop.num_targets), kBlockThreads, 0, as_stream(stream)>>>(
      hop, new_nodes, hop_number, edges, edge_capacity, found, node_capacity, reported,
      error_slot(device));
  PG_LAUNCH_CHECK("clamp_hop_counts_kernel");
}

void pad_edges_cuda(const EdgeOutput& out, const int64_t* edges, const Hop& hop,
                    const PaddedSegment& sources, const PaddedSegment& targets, uintptr_t stream) {
  pad_edges_kernel<<<grid_for(out.capacity), kBlockThreads, 0, as_stream(stream)>>>(
      out, edges, hop, sources, targets);
  PG_LAUNCH_CHECK("pad_edges_kernel");
}

void lower_base_cuda(uint32_t* words, int64_t num_nodes, uint32_t num_entries, uintptr_t stream) {
  clear_used_up_map_kernel<<<grid_for(num_nodes, kBlockThreads, kClearingBlocks), kBlockThreads, 0,
                             as_stream(stream)>>>(words, num_nodes, num_entries);
  PG_LAUNCH_CHECK("clear_used_up_map_kernel");
  lower_base_kernel<<<1, 1, 0, as_stream(stream)>>>(words + num_nodes, num_entries);
  PG_LAUNCH_CHECK("lower_base_kernel");
}

}  // namespace peergraph
