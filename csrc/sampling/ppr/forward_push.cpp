#include "sampling/ppr/forward_push.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

/// A node that has had a residual.
struct Reached {
  int64_t node;  // internal id
  uint64_t residual;
  uint64_t estimate;
  uint64_t threshold;
  Neighbors list;
  uint64_t slot;  // where the table has the node
};

/// The work space of one thread, reused from seed to seed.
class Pusher {
 public:
  Pusher(const CscView& csc, const ForwardPush& push) : csc_(csc), push_(push), slots_(1024, 0) {}

  void run(int64_t seed) {
    begin(push_.to_internal(push_.seeds[seed]));
    while (!frontier_.empty()) {
      shares_.clear();
      for (const uint32_t at : frontier_) shares_.push_back(take(reached_[at]).share);
      next_.clear();
      for (size_t i = 0; i < frontier_.size(); ++i) spread(frontier_[i], shares_[i]);
      std::swap(frontier_, next_);
    }
    write(seed);
    for (const Reached& node : reached_) slots_[node.slot] = 0;
    reached_.clear();
  }

 private:
  void begin(int64_t node) {
    frontier_.clear();
    next_.clear();
    const uint32_t at = find_or_insert(node);
    Reached& seed = reached_[at];
    const Push first = push_of_seed(saturated_degree(seed.list.degree), push_);
    seed.estimate = first.estimate;
    seed.residual = first.rest;
    spread(at, first.share);
    std::swap(frontier_, next_);
  }

  Push take(Reached& node) const {
    const Push split = push_of(node.residual, saturated_degree(node.list.degree), push_.alpha);
    node.residual = split.rest;
    node.estimate += split.estimate;
    return split;
  }

  void spread(uint32_t from, uint64_t share) {
    if (share == 0) return;
    const Neighbors list = reached_[from].list;  // insertions move the nodes
    for (int64_t e = 0; e < list.degree; ++e) {
      const uint32_t at = find_or_insert(load_id(list.indices, csc_.index_bytes, e));
      Reached& node = reached_[at];
      const bool was_below = node.residual < node.threshold;
      node.residual += share;
      if (was_below && node.residual >= node.threshold) next_.push_back(at);
    }
  }

  uint32_t find_or_insert(int64_t node) {
    uint64_t slot = home(node);
    while (slots_[slot] != 0) {
      if (reached_[slots_[slot] - 1].node == node) return slots_[slot] - 1;
      slot = (slot + 1) & (slots_.size() - 1);
    }
    const Neighbors list = csc_.neighbors(node);
    const uint64_t threshold = push_threshold(push_.epsilon, saturated_degree(list.degree));
    reached_.push_back({node, 0, 0, threshold, list, slot});
    slots_[slot] = static_cast<uint32_t>(reached_.size());
    if (2 * reached_.size() > slots_.size()) grow();
    return static_cast<uint32_t>(reached_.size() - 1);
  }

  void grow() {
    slots_.assign(2 * slots_.size(), 0);
    for (size_t i = 0; i < reached_.size(); ++i) {
      uint64_t slot = home(reached_[i].node);
      while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = static_cast<uint32_t>(i + 1);
      reached_[i].slot = slot;
    }
  }

  uint64_t home(int64_t node) const {
    const uint64_t mixed = static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15ull;
    return (mixed >> 32) & (slots_.size() - 1);
  }

  void write(int64_t seed) {
    ranked_.clear();
    for (const Reached& node : reached_)
      if (node.estimate != 0) ranked_.emplace_back(~node.estimate, push_.to_user(node.node));
    const auto count = std::min<int64_t>(push_.keep, static_cast<int64_t>(ranked_.size()));
    std::partial_sort(ranked_.begin(), ranked_.begin() + count, ranked_.end());
    for (int64_t i = 0; i < push_.keep; ++i) {
      const int64_t at = seed * push_.keep + i;
      push_.nodes[at] = i < count ? ranked_[i].second : -1;
      push_.weights[at] =
          i < count ? static_cast<float>(static_cast<double>(~ranked_[i].first) * kResidualUnit)
                    : 0.0f;
    }
  }

  const CscView& csc_;
  const ForwardPush& push_;
  std::vector<uint32_t> slots_;  // a power of two; 1 + the place in reached_, 0: empty
  std::vector<Reached> reached_;
  std::vector<uint32_t> frontier_, next_;  // places in reached_
  std::vector<uint64_t> shares_;
  std::vector<std::pair<uint64_t, int64_t>> ranked_;  // complement of the estimate, user id
};

}  // namespace

void forward_push_cpu(const CscView& csc, const ForwardPush& push, int num_threads) {
  // Seeds differ in work by orders of magnitude, so each thread takes a few at a time.
  const int64_t at_once = std::clamp<int64_t>(push.num_seeds / (4 * num_threads), 1, 32);
  const int64_t pieces = (push.num_seeds + at_once - 1) / at_once;
  parallel_pieces(pieces, num_threads, [&](int64_t p) {
    Pusher pusher(csc, push);
    for (int64_t s = p * at_once; s < std::min((p + 1) * at_once, push.num_seeds); ++s)
      pusher.run(s);
  });
}

}  // namespace peergraph
