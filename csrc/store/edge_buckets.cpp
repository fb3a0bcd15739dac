#include "store/edge_buckets.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/parallel.h"

namespace peergraph {
namespace {

constexpr int64_t kGrain = 1 << 16;
// The sorted results of this many edges fit into a core's cache.
constexpr int64_t kEdgesInCache = 1 << 18;

template <typename Id>
struct Pieces {
  const Id* source;
  const Id* destination;
  int64_t num_sources;
  int64_t num_destinations;
  int shift;
  int64_t num_buckets;

  /// Counts the edges of [begin, end) by bucket.
  PartitionedEdges count(int64_t begin, int64_t end, int64_t* counts) const {
    PartitionedEdges found;
    for (int64_t e = begin; e < end; ++e) {
      const bool bad = source[e] < 0 || source[e] >= num_sources || destination[e] < 0 ||
                       destination[e] >= num_destinations;
      found.num_bad += bad;
      found.is_sorted = found.is_sorted && (e == 0 || destination[e - 1] <= destination[e]);
      if (!bad) ++counts[static_cast<int64_t>(destination[e]) >> shift];
    }
    return found;
  }

  /// Moves the edges of [begin, end) to the positions `next` of their buckets.
  template <typename Source, typename Edge>
  void scatter(int64_t begin, int64_t end, const int64_t* edge_ids, int64_t* next,
               int32_t* out_destination, Source* out_source, Edge* out_edge) const {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t to = static_cast<int64_t>(destination[e]);
      const int64_t bucket = to >> shift;
      const int64_t at = next[bucket]++;
      out_destination[at] = static_cast<int32_t>(to - (bucket << shift));
      out_source[at] = static_cast<Source>(source[e]);
      out_edge[at] = static_cast<Edge>(edge_ids == nullptr ? e : edge_ids[e]);
    }
  }
};

template <typename Id, typename Source>
PartitionedEdges partition(const Pieces<Id>& pieces, const int64_t* edge_ids, int64_t num_edges,
                           int32_t* out_destination, Source* out_source, void* out_edge,
                           int64_t* counts, int num_threads) {
  const int64_t parts = pieces_of(num_edges, kGrain, num_threads);
  const auto begin = [&](int64_t part) { return num_edges * part / parts; };
  std::vector<std::vector<int64_t>> next(parts);
  std::vector<PartitionedEdges> found(parts);
  parallel_pieces(parts, num_threads, [&](int64_t part) {
    next[part].assign(pieces.num_buckets, 0);
    found[part] = pieces.count(begin(part), begin(part + 1), next[part].data());
  });
  PartitionedEdges all;
  for (const auto& piece : found) {
    all.num_bad += piece.num_bad;
    all.is_sorted = all.is_sorted && piece.is_sorted;
  }
  if (all.num_bad > 0) return all;
  int64_t at = 0;
  for (int64_t bucket = 0; bucket < pieces.num_buckets; ++bucket) {
    const int64_t first = at;
    for (auto& positions : next) at += std::exchange(positions[bucket], at);
    counts[bucket] = at - first;
  }
  parallel_pieces(parts, num_threads, [&](int64_t part) {
    const auto move = [&](auto* out) {
      pieces.scatter(begin(part), begin(part + 1), edge_ids, next[part].data(), out_destination,
                     out_source, out);
    };
    if (edge_ids != nullptr)
      move(static_cast<int64_t*>(out_edge));
    else
      move(static_cast<int32_t*>(out_edge));
  });
  return all;
}

/// Edges of one bucket, ordered by narrower ranges of destinations.
template <typename Source>
struct GroupedEdges {
  std::vector<int32_t> destination;
  std::vector<Source> source;
  std::vector<int64_t> edge;

  explicit GroupedEdges(int64_t total) : destination(total), source(total), edge(total) {}
};

/// Calls body(destination, source, edge id) for the edges of all runs.
template <typename Source, typename Edge, typename Body>
void for_each_edge(const std::vector<EdgeRun>& runs, const Body& body) {
  for (const EdgeRun& run : runs) {
    const auto* destination = static_cast<const int32_t*>(run.destination.data);
    const auto* source = static_cast<const Source*>(run.source.data);
    const auto* edge = static_cast<const Edge*>(run.edge.data);
    const int64_t count = run.count();
    for (int64_t e = 0; e < count; ++e)
      body(destination[e], source[e], run.first_edge + static_cast<int64_t>(edge[e]));
  }
}

/// Orders the edges by destination >> shift, where the first position of a range is that of its
/// first destination.
template <typename Source, typename Edge>
GroupedEdges<Source> group_edges(const std::vector<EdgeRun>& runs,
                                 const std::vector<int64_t>& first, int64_t total, int shift) {
  GroupedEdges<Source> grouped(total);
  std::vector<int64_t> next;
  for (size_t v = 0; v < first.size(); v += size_t{1} << shift) next.push_back(first[v]);
  for_each_edge<Source, Edge>(runs, [&](int32_t destination, Source source, int64_t edge) {
    const int64_t at = next[destination >> shift]++;
    grouped.destination[at] = destination;
    grouped.source[at] = source;
    grouped.edge[at] = edge;
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

template <typename Source, typename Edge, typename Index, typename EdgeId>
void sort_runs(const std::vector<EdgeRun>& runs, bool by_edge, int64_t* degrees,
               int64_t num_destinations, Index* indices, EdgeId* edge_ids) {
  std::fill(degrees, degrees + num_destinations, 0);
  for (const EdgeRun& run : runs) {
    const auto* destination = static_cast<const int32_t*>(run.destination.data);
    for (int64_t e = 0, count = run.count(); e < count; ++e) ++degrees[destination[e]];
  }
  std::vector<int64_t> next(num_destinations);
  int64_t total = 0;
  for (int64_t v = 0; v < num_destinations; ++v) {
    next[v] = total;
    total += degrees[v];
  }
  if (by_edge) {
    std::vector<std::pair<int64_t, Source>> pairs(total);
    for_each_edge<Source, Edge>(runs, [&](int32_t destination, Source source, int64_t edge) {
      pairs[next[destination]++] = {edge, source};
    });
    for (int64_t v = 0, first = 0; v < num_destinations; first += degrees[v++])
      std::sort(pairs.begin() + first, pairs.begin() + first + degrees[v]);
    for (int64_t at = 0; at < total; ++at) {
      indices[at] = static_cast<Index>(pairs[at].second);
      if (edge_ids != nullptr) edge_ids[at] = static_cast<EdgeId>(pairs[at].first);
    }
    return;
  }
  const auto put = [&](int32_t destination, Source source, int64_t edge) {
    const int64_t at = next[destination]++;
    indices[at] = static_cast<Index>(source);
    if (edge_ids != nullptr) edge_ids[at] = static_cast<EdgeId>(edge);
  };
  const int shift = grouping_shift(total, num_destinations);
  if (shift == 31) {
    for_each_edge<Source, Edge>(runs, put);
    return;
  }
  // Two passes that write to few places at a time are faster than one pass with random writes.
  const auto grouped = group_edges<Source, Edge>(runs, next, total, shift);
  for (int64_t e = 0; e < total; ++e)
    put(grouped.destination[e], grouped.source[e], grouped.edge[e]);
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

}  // namespace

PartitionedEdges partition_edges(const TensorRef& source, const TensorRef& destination,
                                 const std::optional<TensorRef>& edge_ids, int64_t num_sources,
                                 int64_t num_destinations, int shift,
                                 const TensorRef& out_destination, const TensorRef& out_source,
                                 const TensorRef& out_edge, const TensorRef& counts,
                                 int num_threads) {
  const int64_t num_edges = source.num_elements();
  const int bytes = source.id_bytes("source");
  PG_CHECK_ARG(destination.id_bytes("destination") == bytes,
               "source and destination must have the same type");
  PG_CHECK_ARG(shift >= 0 && shift <= 31, "shift must be from 0 to 31");
  PG_CHECK_ARG(num_edges <= std::numeric_limits<int32_t>::max(),
               "at most 2**31 - 1 edges can be split at once");
  PG_CHECK_ARG(destination.num_elements() == num_edges &&
                   out_destination.num_elements() == num_edges &&
                   out_source.num_elements() == num_edges && out_edge.num_elements() == num_edges,
               "source, destination and the outputs must have the same length");
  PG_CHECK_ARG(out_destination.id_bytes("out_destination") == 4, "out_destination must be int32");
  PG_CHECK_ARG(out_edge.id_bytes("out_edge") == (edge_ids ? 8 : 4),
               "out_edge must be int64 with edge_ids, else int32");
  PG_CHECK_ARG(!edge_ids || edge_ids->num_elements() == num_edges,
               "edge_ids must have one id per edge");
  const int64_t num_buckets = counts.num_elements();
  PG_CHECK_ARG(num_destinations <= num_buckets << shift, "counts must have one element per bucket");
  const auto* ids = edge_ids ? static_cast<const int64_t*>(edge_ids->data) : nullptr;
  PartitionedEdges found;
  with_width(bytes, "ids", [&](auto* id) {
    using Id = std::remove_pointer_t<decltype(id)>;
    const Pieces<Id> pieces{static_cast<const Id*>(source.data),
                            static_cast<const Id*>(destination.data),
                            num_sources,
                            num_destinations,
                            shift,
                            num_buckets};
    with_width(out_source.id_bytes("out_source"), "out_source", [&](auto* out) {
      using Source = std::remove_pointer_t<decltype(out)>;
      found = partition(pieces, ids, num_edges, static_cast<int32_t*>(out_destination.data),
                        static_cast<Source*>(out_source.data), out_edge.data,
                        static_cast<int64_t*>(counts.data), num_threads);
    });
  });
  return found;
}

void sort_bucket(const std::vector<EdgeRun>& runs, bool by_edge, const TensorRef& degrees,
                 const TensorRef& indices, const std::optional<TensorRef>& edge_ids) {
  int64_t total = 0;
  for (const EdgeRun& run : runs) {
    const int64_t count = run.count();
    total += count;
    run.destination.int32_values("destination");
    PG_CHECK_ARG(run.source.num_elements() == count && run.edge.num_elements() == count,
                 "the arrays of a run must have the same length");
    PG_CHECK_ARG(run.source.type == runs[0].source.type && run.edge.type == runs[0].edge.type,
                 "all runs must have the same types");
  }
  const int source_bytes = runs.empty() ? 4 : runs[0].source.id_bytes("source");
  const int edge_bytes = runs.empty() ? 4 : runs[0].edge.id_bytes("edge");
  degrees.int64_values("degrees");
  PG_CHECK_ARG(indices.num_elements() == total, "indices must have one element per edge");
  PG_CHECK_ARG(!edge_ids || edge_ids->num_elements() == total,
               "edge_ids must have one element per edge");
  const int id_bytes = edge_ids ? edge_ids->id_bytes("edge_ids") : 8;
  with_width(source_bytes, "source_bytes", [&](auto* source) {
    with_width(edge_bytes, "edge_bytes", [&](auto* edge) {
      with_width(indices.id_bytes("indices"), "indices", [&](auto* index) {
        with_width(id_bytes, "edge_ids", [&](auto* id) {
          using Source = std::remove_pointer_t<decltype(source)>;
          using Edge = std::remove_pointer_t<decltype(edge)>;
          using Index = std::remove_pointer_t<decltype(index)>;
          using EdgeId = std::remove_pointer_t<decltype(id)>;
          sort_runs<Source, Edge>(runs, by_edge, static_cast<int64_t*>(degrees.data),
                                  degrees.num_elements(), static_cast<Index*>(indices.data),
                                  edge_ids ? static_cast<EdgeId*>(edge_ids->data) : nullptr);
        });
      });
    });
  });
}

}  // namespace peergraph
