#include "sampling/weighted_temporal/list_times.h"

#include <algorithm>

#include "common/vectors.h"

namespace peergraph {
namespace {

// 64 MiB of times.
constexpr int64_t kMostTimes = int64_t{1} << 23;
// Of long lists, the processor itself prefetches the rest.
constexpr int64_t kPrefetchedBytes = 2048;

/// The first row of a table whose rows lie one after the other, else null.
const char* only_segment(const TableView& table) {
  const TierMap& map = table.map;
  if (map.rows == 0 || table.order.value_bytes != 0) return nullptr;
  if (map.replicated == map.rows) return table.replicas[table.rank];
  if (map.replicated != 0) return nullptr;
  if (map.sharded == map.rows) return map.num_shards == 1 ? table.shards[0] : nullptr;
  if (map.sharded != 0) return nullptr;
  return map.host == map.rows ? table.host : map.host == 0 ? table.disk : nullptr;
}

}  // namespace

TimeReader::TimeReader(const CscView& csc, const Choice& choice) : csc_(csc), choice_(choice) {
  if (!choice.timed() || choice.times.row_bytes != choice.time_bytes) return;
  times_ = only_segment(choice.times);
  if (choice.edge_time) edge_ids_ = only_segment(csc.edge_ids);
}

void TimeReader::prefetch(const Neighbors& list) const {
  const char* from = static_cast<const char*>(list.indices);
  int64_t bytes = csc_.index_bytes;
  if (by_position()) {
    from = times_;
    bytes = choice_.time_bytes;
  } else if (choice_.edge_time) {
    from = edge_ids_;
    bytes = csc_.edge_ids.row_bytes;
  }
  if (from == nullptr) return;
  if (choice_.edge_time) from += list.edge_begin * bytes;
  const char* const end = from + std::min(list.degree * bytes, kPrefetchedBytes);
  for (; from < end; from += 64) prefetch_far(from);
}

template <typename Time, typename Id>
void TimeReader::gather(const Id* ids, int64_t count, int64_t* times) const {
  const auto* const from = reinterpret_cast<const Time*>(times_);
  for (int64_t i = 0; i < count; ++i) times[i] = from[ids[i]];
}

template <typename Time>
bool TimeReader::read_as(const Candidates& candidates, int64_t* times) const {
  const Neighbors& list = candidates.list;
  const char* ids = static_cast<const char*>(list.indices);
  int64_t id_bytes = csc_.index_bytes;
  if (by_position()) {
    const auto* const from = reinterpret_cast<const Time*>(times_) + list.edge_begin;
    for (int64_t i = 0; i < list.degree; ++i) times[i] = from[i];
    return true;
  }
  if (choice_.edge_time) {
    if (edge_ids_ == nullptr) return false;
    id_bytes = csc_.edge_ids.row_bytes;
    ids = edge_ids_ + list.edge_begin * id_bytes;
  } else if (!choice_.times_by_internal && choice_.to_user.value_bytes != 0) {
    return false;
  }
  if (id_bytes == 4)
    gather<Time>(reinterpret_cast<const int32_t*>(ids), list.degree, times);
  else
    gather<Time>(reinterpret_cast<const int64_t*>(ids), list.degree, times);
  return true;
}

const int64_t* TimeReader::read(const Candidates& candidates, int64_t* room) const {
  if (times_ != nullptr && by_position() && choice_.time_bytes == 8)
    return reinterpret_cast<const int64_t*>(times_) + candidates.list.edge_begin;
  if (times_ != nullptr && (choice_.time_bytes == 4 ? read_as<int32_t>(candidates, room)
                                                    : read_as<int64_t>(candidates, room)))
    return room;
  for (int64_t i = 0; i < candidates.list.degree; ++i) room[i] = candidates.time(i);
  return room;
}

void ListTimes::plan(const Neighbors* lists, int64_t num_targets) {
  targets_.assign(num_targets, {});
  int64_t total = 0;
  for (int64_t t = 0; t < num_targets; ++t) {
    targets_[t].begin = total;
    total += lists[t].degree;
  }
  has_room_ = total <= kMostTimes;
  if (!has_room_ || total <= capacity_) return;
  room_.reset(new int64_t[total]);
  capacity_ = total;
}

}  // namespace peergraph
