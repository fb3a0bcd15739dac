#include "sampling/weighted_temporal/time_order.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/parallel.h"
#include "sampling/weighted_temporal/choose.h"
#include "sampling/weighted_temporal/list_times.h"

namespace peergraph {
namespace {

// Lists that are bisected together: their reads of memory overlap.
constexpr int64_t kListsAtATime = 16;
constexpr int64_t kListsPerThread = 1 << 12;

/// For each of `count` lists, how many of its times are not after its limit.
template <typename TimeAt>
void count_until(const Neighbors* lists, int64_t count, const int64_t* limits, int64_t* until,
                 const TimeAt& time_at) {
  int64_t length[kListsAtATime], longest = 0;
  for (int64_t k = 0; k < count; ++k) {
    until[k] = 0;
    length[k] = lists[k].degree;
    longest = std::max(longest, length[k]);
  }
  for (; longest > 0; longest /= 2) {
    for (int64_t k = 0; k < count; ++k) {
      if (length[k] == 0) continue;
      const int64_t half = length[k] - length[k] / 2;
      const bool passes = time_at(lists[k], until[k] + half - 1) <= limits[k];
      until[k] += passes ? half : 0;
      length[k] = passes ? length[k] - half : half - 1;
    }
  }
}

}  // namespace

bool lists_in_order_cpu(const CscView& csc, const Choice& choice, int num_threads) {
  const TimeReader reader(csc, choice);
  std::atomic<bool> in_order{true};
  parallel_for(csc.map.rows, kListsPerThread, num_threads, [&](int64_t begin, int64_t end) {
    reader.with_time_at([&](const auto& time_at) {
      for (int64_t row = begin; row < end && in_order.load(std::memory_order_relaxed); ++row) {
        const Neighbors list = csc.neighbors(row);
        bool falls = false;
        int64_t before = INT64_MIN;
        for (int64_t i = 0; i < list.degree; ++i) {
          const int64_t time = time_at(list, i);
          falls |= time < before;
          before = time;
        }
        if (falls) in_order = false;
      }
    });
  });
  return in_order;
}

void bisect_lists_cpu(const CscView& csc, const Choice& choice, const Hop& hop, Neighbors* lists,
                      int64_t begin, int64_t end) {
  const TimeReader reader(csc, choice);
  reader.with_time_at([&](const auto& time_at) {
    for (int64_t first = begin; first < end; first += kListsAtATime) {
      const int64_t count = std::min(kListsAtATime, end - first);
      for (int64_t t = first + kListsAtATime; t < std::min(end, first + 2 * kListsAtATime); ++t)
        reader.prefetch(lists[t]);
      TimeWindow windows[kListsAtATime];
      int64_t limits[kListsAtATime], until[kListsAtATime], before[kListsAtATime] = {};
      bool bounded = false;
      for (int64_t k = 0; k < count; ++k) {
        windows[k] = window_of(choice, hop, first + k);
        limits[k] = windows[k].last;
        bounded |= windows[k].first > INT64_MIN;
      }
      count_until(lists + first, count, limits, until, time_at);
      if (bounded) {
        for (int64_t k = 0; k < count; ++k)
          limits[k] = windows[k].first == INT64_MIN ? INT64_MIN : windows[k].first - 1;
        count_until(lists + first, count, limits, before, time_at);
        for (int64_t k = 0; k < count; ++k)
          if (windows[k].first == INT64_MIN) before[k] = 0;
      }
      for (int64_t k = 0; k < count; ++k) {
        const int64_t t = first + k, admitted = std::max<int64_t>(0, until[k] - before[k]);
        hop.offsets[t] = choice.edges_of(hop.fanout, admitted);
        const ListPart part = part_to_sample(choice, hop.fanout, before[k], admitted);
        lists[t] = Hop::part_of(csc, lists[t], part);
      }
    }
  });
}

}  // namespace peergraph
