#include "store/id_counts.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "common/parallel.h"
#include "common/read_once.h"

namespace peergraph {
namespace {

constexpr int64_t kIdsPerPart = 1 << 16;

/// Calls add(id) for the ids of [begin, end) that are in range.
template <typename Id, typename Add>
CountedIds visit(const Id* ids, int64_t begin, int64_t end, int64_t limit, const Add& add) {
  CountedIds result;
  Id before = read_once(ids + std::max<int64_t>(0, begin - 1));
  for (int64_t i = begin; i < end; ++i) {
    const Id id = read_once(ids + i);
    const bool in_range = is_below(id, limit);
    result.in_range &= in_range;
    result.rises &= before <= id;
    before = id;
    if (in_range) add(id);
  }
  return result;
}

template <typename Id>
CountedIds count(const Id* ids, int64_t num_ids, int64_t limit, int64_t* counts, bool is_shared,
                 int num_threads) {
  const int64_t parts = pieces_of(num_ids, kIdsPerPart, num_threads);
  std::vector<CountedIds> of_parts(parts);
  parallel_pieces(num_ids == 0 ? 0 : parts, num_threads, [&](int64_t part) {
    const int64_t begin = num_ids * part / parts, end = num_ids * (part + 1) / parts;
    if (counts == nullptr)
      of_parts[part] = visit(ids, begin, end, limit, [](int64_t) {});
    else if (is_shared || parts > 1)
      of_parts[part] = visit(ids, begin, end, limit, [&](int64_t id) {
        __atomic_fetch_add(counts + id, int64_t{1}, __ATOMIC_RELAXED);
      });
    else
      of_parts[part] = visit(ids, begin, end, limit, [&](int64_t id) { ++counts[id]; });
  });
  CountedIds all;
  for (const CountedIds& part : of_parts) {
    all.in_range &= part.in_range;
    all.rises &= part.rises;
  }
  return all;
}

}  // namespace

CountedIds count_ids(const TensorRef& ids, int64_t limit, const std::optional<TensorRef>& counts,
                     bool is_shared, int num_threads) {
  const int64_t num_ids = ids.num_elements();
  PG_CHECK_ARG(!counts || counts->num_elements() == limit, "counts must have one element per id");
  int64_t* const into = counts ? counts->int64_values("counts") : nullptr;
  if (ids.id_bytes("ids") == 4)
    return count(static_cast<const int32_t*>(ids.data), num_ids, limit, into, is_shared,
                 num_threads);
  return count(static_cast<const int64_t*>(ids.data), num_ids, limit, into, is_shared, num_threads);
}

}  // namespace peergraph
