#include "common/cuda_check.cuh"
#include "sampling/common/for_each_target.cuh"
#include "sampling/subgraph/induced.h"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

/// Counts or writes the induced edges of one target.
template <bool kWrite>
struct Induce {
  template <typename Group>
  __device__ void operator()(const Group& group, const SharedScratch&, const RelationView& relation,
                             const Hop& hop, const NodeIndex& sources, int64_t t) const {
    const CscView& csc = relation.csc;
    const Candidates candidates = candidates_of(csc, relation.choice, hop, t);
    const Neighbors& list = candidates.list;
    // The row of the source; kUnknown if the edge is not in the subgraph.
    const auto row_of = [&](int64_t i) {
      const int64_t node = load_id(list.indices, csc.index_bytes, i);
      const uint32_t row = sources.look_up(hop.tree(t), node);
      return sources.is_row(row) && candidates.admits(i) ? row : kUnknown;
    };
    if constexpr (kWrite) {
      uint64_t slot = static_cast<uint64_t>(hop.offsets[t]);
      for (int64_t base = 0; base < list.degree; base += Group::kThreads) {
        const int64_t i = base + group.thread_rank();
        const uint32_t row = i < list.degree ? row_of(i) : kUnknown;
        const bool keep = row != kUnknown;
        uint64_t kept;
        const uint64_t to = slot + group.exclusive_sum(keep ? 1 : 0, kept);
        if (keep) write_slot(csc, hop, list, t, static_cast<int64_t>(to), i, row);
        slot += kept;
      }
    } else {
      uint64_t count = 0;
      for (int64_t i = group.thread_rank(); i < list.degree; i += Group::kThreads)
        count += row_of(i) != kUnknown ? 1 : 0;
      count = group.reduce_sum(count);
      if (group.thread_rank() == 0) hop.offsets[t] = static_cast<int64_t>(count);
    }
  }
};

}  // namespace

void count_induced_cuda(const HopBatch& batch) {
  launch_each_target(batch, Induce<false>{}, [](const Hop&, const Choice&) { return true; });
}

void induce_cuda(const HopBatch& batch) {
  launch_each_target(batch, Induce<true>{},
                     [](const Hop& hop, const Choice&) { return hop.slots > 0; });
}

}  // namespace peergraph
