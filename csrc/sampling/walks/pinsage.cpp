#include "sampling/walks/pinsage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kVisitsPerThread = 4096;

struct Visited {
  int64_t count;
  int64_t first;  // position of the first visit
  int64_t node;
};

/// The work space of one thread, reused from target to target.
class Counter {
 public:
  void run(const Visits& visits, int64_t target) {
    count(visits.nodes + target * visits.per_target, visits.per_target);
    const auto kept = std::min<int64_t>(visits.keep, static_cast<int64_t>(found_.size()));
    std::partial_sort(found_.begin(), found_.begin() + kept, found_.end(),
                      [](const Visited& a, const Visited& b) {
                        return a.count != b.count ? a.count > b.count : a.first < b.first;
                      });
    for (int64_t i = 0; i < visits.keep; ++i) {
      const int64_t at = target * visits.keep + i;
      visits.top_nodes[at] = i < kept ? found_[i].node : -1;
      visits.top_counts[at] = i < kept ? static_cast<int32_t>(found_[i].count) : 0;
    }
  }

 private:
  void count(const int64_t* nodes, int64_t n) {
    sorted_.clear();
    for (int64_t i = 0; i < n; ++i)
      if (nodes[i] >= 0) sorted_.emplace_back(nodes[i], i);
    std::sort(sorted_.begin(), sorted_.end());
    found_.clear();
    for (const auto& [node, position] : sorted_) {
      if (found_.empty() || found_.back().node != node) found_.push_back({0, position, node});
      ++found_.back().count;
    }
  }

  std::vector<std::pair<int64_t, int64_t>> sorted_;  // node, position
  std::vector<Visited> found_;
};

}  // namespace

void top_visits_cpu(const Visits& visits, int num_threads) {
  const int64_t grain = kVisitsPerThread / std::max<int64_t>(1, visits.per_target) + 1;
  parallel_for(visits.targets, grain, num_threads, [&](int64_t begin, int64_t end) {
    Counter counter;
    for (int64_t t = begin; t < end; ++t) counter.run(visits, t);
  });
}

}  // namespace peergraph
