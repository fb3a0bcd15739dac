#include "common/cuda_check.cuh"
#include "common/ids.h"
#include "sampling/common/hop_batch.cuh"
#include "sampling/khop/write_sample.h"

namespace peergraph {
namespace {

/// The nodes of a type, as a kernel reads them.
struct NodesOfType {
  IdMapView to_user;
  NodeList nodes;
  NodesOutput out;
};

template <typename Hops, typename Outputs>
__global__ void __launch_bounds__(kBlockThreads)
    write_edges_kernel(const __grid_constant__ Hops hops, const Outputs outputs) {
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const EdgeOutput out = of_hop(outputs, part.index);
  for (int64_t slot = part.thread(); slot < hop.slots; slot += part.threads()) {
    const int64_t found = load_id(hop.sources, hop.index_bytes, slot);
    if (found == -1) continue;
    const int64_t target = hop.owner(static_cast<uint32_t>(slot));
    const int64_t within = hop.stride > 0 ? hop.offsets[target] + slot - target * hop.stride : slot;
    if (within >= out.capacity) continue;
    const int64_t edge = out.begin + within;
    const int64_t row =
        found >= 0 ? found
                   : load_id(hop.sources, hop.index_bytes, Hop::repeats(found) - hop.slots_before);
    store_id(out.row, out.index_bytes, edge, row);
    store_id(out.col, out.index_bytes, edge, hop.first_target + target);
    if (out.edge_ids != nullptr) out.edge_ids[edge] = hop.edge_ids[slot];
    if (out.duplicates != nullptr) atomicAdd(out.duplicates + row, 1);
  }
}

template <typename Types>
__global__ void __launch_bounds__(kBlockThreads)
    write_nodes_kernel(const __grid_constant__ Types types, bool valid_padding) {
  const ItemPart<NodesOfType> part = types.part();
  const IdMapView& to_user = part.item.to_user;
  const NodeList& nodes = part.item.nodes;
  const NodesOutput& out = part.item.out;
  int64_t padding_id = -1;
  if (valid_padding) padding_id = nodes.ids[0] < 0 ? 0 : to_user(nodes.ids[0]);
  for (int64_t row = part.block * blockDim.x + threadIdx.x; row < nodes.count;
       row += part.blocks * blockDim.x) {
    const int64_t node = nodes.ids[row];
    out.ids[row] = node < 0 ? padding_id : to_user(node);
    if (out.batch != nullptr) out.batch[row] = nodes.trees[row];
  }
}

}  // namespace

void write_edges_cuda(const HopBatch& batch, const std::vector<EdgeOutput>& outputs) {
  const auto blocks_of = [](const Hop& hop, const RelationView&) -> int64_t {
    return grid_for(hop.slots);
  };
  launch_for<OneHop>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t number) {
    using Hops = std::decay_t<decltype(hops)>;
    write_edges_kernel<<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(
        hops, argument_of<Hops>(outputs, number, batch));
    PG_LAUNCH_CHECK("write_edges_kernel");
  });
}

void write_nodes_cuda(const std::vector<NodesWrite>& writes, bool valid_padding, Arena& arena,
                      uintptr_t stream) {
  std::vector<NodesOfType> types;
  std::vector<unsigned> blocks;
  for (const NodesWrite& each : writes) {
    types.push_back({each.type->to_user, *each.nodes, each.out});
    blocks.push_back(grid_for(each.nodes->count));
  }
  if (types.empty()) return;
  const Allocate allocate = [&](int64_t num_bytes) { return arena.take(num_bytes); };
  launch_items(types, blocks, allocate, as_stream(stream),
               [&](const auto& items, unsigned num_blocks) {
                 write_nodes_kernel<<<num_blocks, kBlockThreads, 0, as_stream(stream)>>>(
                     items, valid_padding);
                 PG_LAUNCH_CHECK("write_nodes_kernel");
               });
}

}  // namespace peergraph
