#include "store/edge_buckets.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/parallel.h"
#include "common/read_once.h"
#include "common/stream_copy.h"

namespace peergraph {
namespace {

constexpr int64_t kEdgesPerPart = 1 << 16;
// Edges of a bucket that are written at once. A record's size is a multiple of 4, so that these are
// whole lines of 64 bytes.
constexpr int64_t kGroup = 16;
// The sorted results of this many edges fit into a core's cache.
constexpr int64_t kEdgesInCache = 1 << 18;

template <typename Id>
struct Pieces {
  const Id* source;
  const Id* destination;
  int64_t num_sources;
  int64_t first_destination;
  int64_t num_destinations;
  int shift;
  int64_t num_buckets;

  struct Edge {
    int64_t bucket;  // num_buckets: an end is out of range
    int64_t to;      // minus the first destination
    Id source;
  };

  /// An edge, whose memory another thread may write meanwhile. Negative ids are large ones.
  Edge edge(int64_t e) const {
    const Id from = read_once(source + e);
    const int64_t to = static_cast<int64_t>(read_once(destination + e)) - first_destination;
    // Without a branch: which edges are in a range is hard to predict.
    const auto mask = -static_cast<int64_t>(static_cast<int>(is_below(from, num_sources)) &
                                            static_cast<int>(is_below(to, num_destinations)));
    return {num_buckets ^ ((num_buckets ^ (to >> shift)) & mask), to, from};
  }

  /// Counts the edges of [begin, end) by bucket; those that are out of range come last.
  bool count(int64_t begin, int64_t end, int64_t* counts) const {
    if (begin == end) return true;
    bool is_sorted = true;
    Id before = destination[std::max<int64_t>(0, begin - 1)];
    for (int64_t e = begin; e < end; ++e) {
      ++counts[edge(e).bucket];
      const Id to = destination[e];
      is_sorted &= before <= to;
      before = to;
    }
    return is_sorted;
  }

  /// Moves the edges of [begin, end) to the positions `next` of their buckets. Edges wait in a
  /// small group for each bucket, so that whole lines of memory are written.
  template <typename Source>
  void scatter(int64_t begin, int64_t end, std::vector<int64_t>& next, int64_t num_records,
               EdgeRecord<Source>* records) const {
    using Record = EdgeRecord<Source>;
    std::vector<Record> groups((num_buckets + 1) * kGroup);
    const std::vector<int64_t> first = next;
    for (int64_t e = begin; e < end; ++e) {
      const Edge edge = this->edge(e);
      const int64_t bucket = edge.bucket;
      const int64_t at = next[bucket]++;
      Record* group = &groups[bucket * kGroup];
      group[at % kGroup] = {static_cast<int32_t>(edge.to - (bucket << shift)),
                            static_cast<Source>(edge.source), static_cast<int32_t>(e)};
      if (at % kGroup != kGroup - 1 || bucket == num_buckets) continue;
      // Edges that another thread has changed since they were counted.
      if (at >= num_records) return finish_streams();
      const int64_t group_at = at + 1 - kGroup;
      if (group_at >= first[bucket])
        stream_copy(records + group_at, group, kGroup * sizeof(Record));
      else
        copy_part(group, first[bucket], at + 1, records);
    }
    for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
      const int64_t last = std::min(next[bucket], num_records);
      copy_part(&groups[bucket * kGroup], std::max(first[bucket], last / kGroup * kGroup), last,
                records);
    }
    finish_streams();
  }

  /// Copies the edges at positions [begin, end), which are in one group.
  template <typename Record>
  static void copy_part(const Record* group, int64_t begin, int64_t end, Record* records) {
    if (begin < end)
      std::copy(group + begin % kGroup, group + begin % kGroup + (end - begin), records + begin);
  }
};

template <typename Source, typename Id>
PartitionedEdges partition(const Pieces<Id>& pieces, int64_t num_edges, EdgeRecord<Source>* records,
                           int64_t* counts, int num_threads) {
  const int64_t parts = pieces_of(num_edges, kEdgesPerPart, num_threads);
  const auto begin = [&](int64_t part) { return num_edges * part / parts; };
  std::vector<std::vector<int64_t>> next(parts);
  std::vector<char> is_sorted(parts);
  parallel_pieces(parts, num_threads, [&](int64_t part) {
    next[part].assign(pieces.num_buckets + 1, 0);
    is_sorted[part] = pieces.count(begin(part), begin(part + 1), next[part].data());
  });
  PartitionedEdges result;
  for (const char sorted : is_sorted) result.is_sorted = result.is_sorted && sorted != 0;
  int64_t at = 0;
  for (int64_t bucket = 0; bucket < pieces.num_buckets; ++bucket) {
    const int64_t first = at;
    for (auto& positions : next) at += std::exchange(positions[bucket], at);
    counts[bucket] = at - first;
  }
  result.num_taken = at;
  parallel_pieces(parts, num_threads, [&](int64_t part) {
    next[part][pieces.num_buckets] = 0;
    pieces.scatter(begin(part), begin(part + 1), next[part], result.num_taken, records);
  });
  return result;
}

/// Calls body(destination, source, edge id) for the edges of all runs.
template <typename Record, typename Body>
void for_each_edge(const std::vector<EdgeRun>& runs, int64_t num_destinations, const Body& body) {
  for (const EdgeRun& run : runs) {
    const auto* records = static_cast<const Record*>(run.records.data) + run.begin;
    for (int64_t e = 0; e < run.count; ++e) {
      const Record& edge = records[e];
      if (static_cast<uint64_t>(edge.destination) >= static_cast<uint64_t>(num_destinations))
        throw std::out_of_range("the records of a bucket are damaged: destination " +
                                std::to_string(edge.destination) + " of " +
                                std::to_string(num_destinations));
      body(edge.destination, edge.source, run.first_edge + static_cast<int64_t>(edge.edge));
    }
  }
}

/// Orders the edges by destination >> shift, where the first position of a range is that of its
/// first destination.
template <typename Source>
std::vector<EdgeRecord<Source, int64_t>> group_edges(const std::vector<EdgeRun>& runs,
                                                     const std::vector<uint32_t>& first,
                                                     int64_t total, int shift) {
  std::vector<EdgeRecord<Source, int64_t>> grouped(total);
  std::vector<uint32_t> next;
  for (size_t v = 0; v < first.size(); v += size_t{1} << shift) next.push_back(first[v]);
  for_each_edge<EdgeRecord<Source>>(runs, static_cast<int64_t>(first.size()),
                                    [&](int32_t to, Source source, int64_t edge) {
                                      grouped[next[to >> shift]++] = {to, source, edge};
                                    });
  return grouped;
}

/// The shift that gives ranges of about kEdgesInCache edges; 31 where all edges fit.
inline int grouping_shift(int64_t total, int64_t num_destinations) {
  if (total <= 2 * kEdgesInCache) return 31;
  const int64_t width = std::max<int64_t>(1, num_destinations * kEdgesInCache / total);
  int shift = 0;
  while ((int64_t{2} << shift) <= width) ++shift;
  return shift;
}

template <typename Source, typename EdgeId>
void sort_runs(const std::vector<EdgeRun>& runs, int64_t* degrees, int64_t num_destinations,
               Source* indices, EdgeId* edge_ids) {
  // Positions of half the size leave more of the cache to the results.
  std::vector<uint32_t> next(num_destinations, 0);
  for_each_edge<EdgeRecord<Source>>(runs, num_destinations,
                                    [&](int32_t to, Source, int64_t) { ++next[to]; });
  int64_t total = 0;
  for (int64_t v = 0; v < num_destinations; ++v) {
    degrees[v] = next[v];
    next[v] = static_cast<uint32_t>(total);
    total += degrees[v];
  }
  const auto put = [&](int32_t to, Source source, int64_t edge) {
    const int64_t at = next[to]++;
    indices[at] = source;
    if (edge_ids != nullptr) edge_ids[at] = static_cast<EdgeId>(edge);
  };
  const int shift = grouping_shift(total, num_destinations);
  if (shift == 31) {
    for_each_edge<EdgeRecord<Source>>(runs, num_destinations, put);
    return;
  }
  // Two passes that write to few places at a time are faster than one pass with random writes.
  for (const auto& edge : group_edges<Source>(runs, next, total, shift))
    put(edge.destination, edge.source, edge.edge);
}

/// Calls body with a null pointer to int32_t or int64_t, as a type tag.
template <typename Body>
void with_width(int bytes, const char* name, const Body& body) {
  PG_CHECK_ARG(bytes == 4 || bytes == 8, std::string(name) + " must be 4 or 8");
  if (bytes == 4)
    body(static_cast<int32_t*>(nullptr));
  else
    body(static_cast<int64_t*>(nullptr));
}

int64_t record_bytes(int source_bytes) { return 4 + source_bytes + 4; }

}  // namespace

PartitionedEdges partition_edges(const TensorRef& source, const TensorRef& destination,
                                 int64_t num_sources, int64_t first_destination,
                                 int64_t num_destinations, int shift, int source_bytes,
                                 const TensorRef& records, const TensorRef& counts,
                                 int num_threads) {
  const int64_t num_edges = source.num_elements();
  const int bytes = source.id_bytes("source");
  PG_CHECK_ARG(destination.id_bytes("destination") == bytes,
               "source and destination must have the same type");
  PG_CHECK_ARG(shift >= 0 && shift <= 31, "shift must be from 0 to 31");
  PG_CHECK_ARG(num_edges <= std::numeric_limits<int32_t>::max(),
               "at most 2**31 - 1 edges can be split at once");
  PG_CHECK_ARG(destination.num_elements() == num_edges,
               "source and destination must have the same length");
  const int64_t num_buckets = counts.num_elements();
  PG_CHECK_ARG(first_destination >= 0, "first_destination must not be negative");
  PG_CHECK_ARG(num_destinations <= num_buckets << shift, "counts must have one element per bucket");
  int64_t* const edges_of = counts.int64_values("counts");
  PartitionedEdges result;
  with_width(bytes, "ids", [&](auto* id) {
    using Id = std::remove_pointer_t<decltype(id)>;
    const Pieces<Id> pieces{static_cast<const Id*>(source.data),
                            static_cast<const Id*>(destination.data),
                            num_sources,
                            first_destination,
                            num_destinations,
                            shift,
                            num_buckets};
    with_width(source_bytes, "source_bytes", [&](auto* out) {
      using Source = std::remove_pointer_t<decltype(out)>;
      PG_CHECK_ARG(records.num_bytes() == num_edges * record_bytes(source_bytes),
                   "records must have one record per edge");
      result = partition(pieces, num_edges, static_cast<EdgeRecord<Source>*>(records.data),
                         edges_of, num_threads);
    });
  });
  return result;
}

void sort_bucket(const std::vector<EdgeRun>& runs, const TensorRef& degrees,
                 const TensorRef& indices, const std::optional<TensorRef>& edge_ids) {
  const int source_bytes = indices.id_bytes("indices");
  const int64_t bytes = record_bytes(source_bytes);
  int64_t total = 0;
  for (const EdgeRun& run : runs) {
    const int64_t records = run.records.num_bytes() / bytes;
    PG_CHECK_ARG(run.begin >= 0 && run.count >= 0 && run.begin <= records &&
                     run.count <= records - run.begin,
                 "a run must lie in its records");
    total += run.count;
  }
  degrees.int64_values("degrees");
  PG_CHECK_ARG(total <= std::numeric_limits<uint32_t>::max(),
               "at most 2**32 - 1 edges can be sorted at once");
  PG_CHECK_ARG(indices.num_elements() == total, "indices must have one element per edge");
  PG_CHECK_ARG(!edge_ids || edge_ids->num_elements() == total,
               "edge_ids must have one element per edge");
  const int id_bytes = edge_ids ? edge_ids->id_bytes("edge_ids") : 8;
  with_width(source_bytes, "indices", [&](auto* source) {
    with_width(id_bytes, "edge_ids", [&](auto* id) {
      using Source = std::remove_pointer_t<decltype(source)>;
      using EdgeId = std::remove_pointer_t<decltype(id)>;
      sort_runs<Source>(runs, static_cast<int64_t*>(degrees.data), degrees.num_elements(),
                        static_cast<Source*>(indices.data),
                        edge_ids ? static_cast<EdgeId*>(edge_ids->data) : nullptr);
    });
  });
}

}  // namespace peergraph
