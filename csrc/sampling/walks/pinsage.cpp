#include "sampling/walks/pinsage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kVisitsPerThread = 4096;
constexpr int64_t kStartsPerThread = 1 << 16;

struct Visited {
  int64_t count;
  int64_t first;  // number of the first visit
  int64_t node;
};

/// The work space of one thread, reused from target to target.
class Counter {
 public:
  /// Writes at most `keep` neighbours of a target; returns their number.
  int64_t run(const Visits& visits, int64_t target, int64_t keep, int64_t* nodes, int32_t* counts) {
    count(visits, target);
    const auto num_largest = std::min<int64_t>(keep, static_cast<int64_t>(found_.size()));
    std::partial_sort(found_.begin(), found_.begin() + num_largest, found_.end(),
                      [](const Visited& a, const Visited& b) {
                        return a.count != b.count ? a.count > b.count : a.first < b.first;
                      });
    for (int64_t i = 0; i < num_largest; ++i) {
      nodes[i] = found_[i].node;
      counts[i] = static_cast<int32_t>(found_[i].count);
    }
    return num_largest;
  }

 private:
  void count(const Visits& visits, int64_t target) {
    sorted_.clear();
    for (uint32_t i = 0; i < visits.per_target; ++i) {
      const int64_t node = visits.node(target, i);
      if (node >= 0) sorted_.emplace_back(node, i);
    }
    std::sort(sorted_.begin(), sorted_.end());
    found_.clear();
    for (const auto& [node, visit] : sorted_) {
      if (found_.empty() || found_.back().node != node) found_.push_back({0, visit, node});
      ++found_.back().count;
    }
  }

  std::vector<std::pair<int64_t, uint32_t>> sorted_;  // node, number of the visit
  std::vector<Visited> found_;
};

}  // namespace

Walks walks_of(const VisitChoice& choice, const Hop& hop, int64_t* nodes, int64_t* positions) {
  Walks walks;
  walks.count = hop.num_targets * choice.num_walks;
  walks.length = choice.steps();
  walks.nodes = nodes;
  walks.positions = positions;
  walks.seed = hop.random.seed;
  walks.stream = choice.stream + hop.random.stream * static_cast<uint64_t>(choice.steps());
  walks.restart_below = choice.restart_below;
  walks.restart_every = choice.num_relations();
  return walks;
}

Visits visits_of(const VisitChoice& choice, const int64_t* nodes) {
  return {nodes,
          choice.num_walks,
          choice.steps(),
          choice.num_relations(),
          static_cast<uint32_t>(choice.walk_length),
          static_cast<uint32_t>(choice.visits())};
}

void MostVisited::find(const VisitChoice& choice, const Hop& hop, int num_threads) {
  const int64_t targets = hop.num_targets, columns = choice.steps() + 1;
  const int64_t count = checked_product(targets, choice.num_walks);
  const std::unique_ptr<int64_t[]> nodes(new int64_t[checked_product(count, columns)]);
  const std::unique_ptr<int64_t[]> positions(new int64_t[count]);
  parallel_for(count, kStartsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) nodes[w * columns] = hop.targets[w / choice.num_walks];
  });
  take_walks(
      choice, walks_of(choice, hop, nodes.get(), positions.get()),
      [&](const CscView& csc, const Walks& walks) { random_walk_cpu(csc, walks, num_threads); });
  nodes_.reset(new int64_t[checked_product(targets, hop.fanout)]);
  counts_.reset(new int32_t[targets * hop.fanout]);
  const Visits visits = visits_of(choice, nodes.get());
  const int64_t grain = kVisitsPerThread / std::max<int64_t>(1, choice.visits()) + 1;
  parallel_for(targets, grain, num_threads, [&](int64_t begin, int64_t end) {
    Counter counter;
    for (int64_t t = begin; t < end; ++t)
      hop.offsets[t] = counter.run(visits, t, hop.fanout, nodes_.get() + t * hop.fanout,
                                   counts_.get() + t * hop.fanout);
  });
}

void MostVisited::fill_slots(const Hop& hop, int64_t begin, int64_t end) const {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = hop.offsets[t];
    for (int64_t slot = first; slot < hop.offsets[t + 1]; ++slot) {
      const int64_t at = t * hop.fanout + slot - first;
      store_id(hop.sources, hop.index_bytes, slot, nodes_[at]);
      hop.edge_ids[slot] = counts_[at];
    }
  }
}

}  // namespace peergraph
