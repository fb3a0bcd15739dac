#include "sampling/neighbor.h"

namespace peergraph {

void sample_neighbors_cpu(const CscView& csc, const Hop& hop, int64_t begin, int64_t end) {
  VirtualShuffle shuffle;
  for (int64_t t = begin; t < end; ++t) {
    const Neighbors list = csc.neighbors(hop.targets[t]);
    const int64_t slot = hop.offsets[t];
    const int64_t count = hop.offsets[t + 1] - slot;
    const auto emit = [&](int64_t i, int64_t pick) {
      store_id(hop.sources, hop.index_bytes, slot + i,
               load_id(list.indices, hop.index_bytes, pick));
      if (hop.edge_ids != nullptr) hop.edge_ids[slot + i] = csc.edge_id(list.edge_begin + pick);
    };
    if (count < list.degree) {
      shuffle.run(hop.source, list.degree, t, count, emit);
    } else {
      for (int64_t i = 0; i < count; ++i) emit(i, i);
    }
  }
}

}  // namespace peergraph
